"""Seeded random calls of the OpenAI routes, and their answers read from both modes in one form."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx2

from tests.api.sse_events import events_of

WORDS = [
    "ab",
    "abc",
    " the",
    " end",
    "\n\n",
    "한국",
    "🧑‍🚀",
    "e\u0301",
    "é",
    "stop",
    "STOP",
    "<|end|>",
    "<tool 한>",
    " ",
    "x",
]
END_ID = 272  # of <|end|>, which ends an answer unless ignore_eos
ROUTES = ("/v1/chat/completions", "/v1/completions")


@dataclass
class Choice:
    """One choice, whichever mode it came in."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    finish_reasons: list[str] = field(default_factory=list)
    stop_reason: str | int | None = None
    prompt_token_ids: list[int] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take in a choice of a whole answer, or of the next chunk."""
        said = choice.get("message") or choice.get("delta") or {}
        self.text += choice.get("text") or said.get("content") or ""
        self.token_ids += choice["token_ids"]
        for name, values in (choice["logprobs"] or {}).items():
            self.logprobs[name] = self.logprobs.get(name, []) + (values or [])
        if choice["finish_reason"] is not None:
            self.finish_reasons.append(choice["finish_reason"])
            self.stop_reason = choice["stop_reason"]
        self.prompt_token_ids = self.prompt_token_ids or choice.get("prompt_token_ids")


@dataclass
class Answered:
    """What a call gave: its choices by index, and its usage."""

    choices: dict[int, Choice]
    usage: dict[str, Any]

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())


async def ask(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Answered:
    """The answer to a call, streamed or not; what a stream must keep to is checked on the way."""
    response = await client.post(path, json=body)
    assert response.status_code == 200, (body, response.text)
    if body.get("stream"):
        return _read_stream(body, events_of(response.text))
    answer = response.json()
    answered = Answered({}, _countable(answer["usage"]))
    for choice in answer["choices"]:
        answered.choice(choice["index"]).add(choice)
    _take_prompt_ids(answered, answer)
    return answered


def _read_stream(body: dict[str, Any], events: list[Any]) -> Answered:
    answered, options = Answered({}, {}), body["stream_options"]
    assert events.pop() == "[DONE]"
    if options["include_usage"]:
        last = events.pop()
        assert last["choices"] == []
        answered.usage = _countable(last["usage"])
    for event in events:
        [part] = event["choices"]
        choice = answered.choice(part["index"])
        assert not choice.finish_reasons, "something came after the end"
        length = len(choice.text)
        choice.add(part)
        assert len(choice.text) > length or choice.finish_reasons, "a chunk without text"
        assert part["token_ids"] or choice.finish_reasons
        assert ("usage" in event) == options["continuous_usage_stats"]
        if "usage" in event and not options["include_usage"]:
            answered.usage = _countable(event["usage"])
    _take_prompt_ids(answered, events[0])
    return answered


def _take_prompt_ids(answered: Answered, part: dict[str, Any]) -> None:
    """Of chat, which has one prompt: they stand beside the choices."""
    if "prompt_token_ids" in part:
        for choice in answered.choices.values():
            choice.prompt_token_ids = part["prompt_token_ids"]


def _countable(usage: dict[str, Any]) -> dict[str, Any]:
    """Without the prefix hits: of two equal calls the second one has more."""
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def random_text(random: Random) -> str:
    return "".join(random.choice(WORDS) for _ in range(random.randint(1, 8)))


def random_call(random: Random) -> tuple[str, dict[str, Any]]:
    """A route and a body without stop texts; the answer is short."""
    path = random.choice(ROUTES)
    body: dict[str, Any] = {
        "max_tokens": random.randint(1, 20),
        "temperature": random.choice([0, 1, 1, 1.5]),
        "seed": random.getrandbits(32),
        "n": random.choice([1, 1, 2, 3]),
        "return_token_ids": True,
        "skip_special_tokens": random.random() < 0.5,
        "ignore_eos": random.random() < 0.5,
        "logit_bias": random.choice(
            [{}, {str(END_ID): 5}, {str(0xED): 6, str(0x95): 6}]
        ),  # ends; cut characters
    }
    if random.random() < 0.2:
        body["min_tokens"] = random.randint(1, body["max_tokens"])
    wants_logprobs = random.random() < 0.6
    if path == ROUTES[0]:
        body["messages"] = [{"role": "user", "content": random_text(random)}]
        if wants_logprobs:
            body |= {"logprobs": True, "top_logprobs": random.choice([0, 2])}
        return path, body
    texts = [random_text(random) for _ in range(random.choice([1, 1, 2]))]
    body["prompt"] = [list(text.encode()) for text in texts] if random.random() < 0.3 else texts
    body["echo"] = random.random() < 0.4
    if body["echo"] and random.random() < 0.2:
        body["max_tokens"] = 0
        body.pop("min_tokens", None)
    if wants_logprobs:
        body["logprobs"] = random.choice([0, 2])
    return path, body


def with_stops(random: Random, body: dict[str, Any], answered: Answered) -> dict[str, Any]:
    """The body with what ends some of its answers, texts and ids taken from them, and what never comes."""
    choice = answered.choices[random.choice(sorted(answered.choices))]
    stops = ["never comes", random_text(random)]
    if choice.text:
        start = random.randrange(len(choice.text))
        stops.append(choice.text[start : start + random.randint(1, 6)])
    body = body | {"include_stop_str_in_output": random.random() < 0.3}
    if random.random() < 0.8:
        body["stop"] = stops if random.random() < 0.7 else stops[-1]
    if random.random() < 0.2 and choice.token_ids:
        body["stop_token_ids"] = [random.choice(choice.token_ids)]
    return body
