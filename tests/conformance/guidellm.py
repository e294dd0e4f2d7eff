"""guidellm: health, models, then streamed chat and completions at a fixed concurrency."""

import json
from pathlib import Path

from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.live_server import LiveServer

REQUIREMENTS = (("torch==2.13.0",), ("guidellm==0.8.1",))  # it would bring torch's build for GPUs
FLAGS = ()
ROUTES = ("/v1/chat/completions", "/v1/completions")
NUM_REQUESTS, ANSWER_TOKENS = 12, 16


def check(environment: Environment, server: LiveServer, model: Path) -> str:
    for route in ROUTES:
        _check_route(environment, server, model, route)
    return f"{NUM_REQUESTS} streams of {ANSWER_TOKENS} tokens on each of {', '.join(ROUTES)}, 4 at once"


def _check_route(environment: Environment, server: LiveServer, model: Path, route: str) -> None:
    report = environment.output("report.json")
    with server.counting() as counts:
        environment.run(
            "guidellm", "run",
            "--backend", f"kind=openai_http,target={server.url},request_format={route}",
            "--tokenizer", f"kind=huggingface_auto,model={model}",
            "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={ANSWER_TOKENS}",
            "--profile", "kind=concurrent,streams=4",
            "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
            "--output", f"kind=json,path={report}", "--disable-console",
        )  # fmt: skip
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    if (totals["successful"], totals["errored"], totals["incomplete"]) != (NUM_REQUESTS, 0, 0):
        raise ConformanceError(f"{route}: not {NUM_REQUESTS} requests without an error: {totals}")
    answers = benchmark["requests"]["successful"]
    told = sum(answer["output_metrics"]["text_tokens"] for answer in answers)
    if (counts.num_answered, counts.num_broken, counts.num_refused) != (NUM_REQUESTS, 0, 0):
        raise ConformanceError(f"{route}: the server counted {counts}")
    if told != counts.generated_tokens or told != NUM_REQUESTS * ANSWER_TOKENS:
        raise ConformanceError(
            f"{route}: {told} tokens by the client, {counts.generated_tokens} by the server"
        )
