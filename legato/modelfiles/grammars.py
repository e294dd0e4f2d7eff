"""The one door to llguidance: a tokenizer's tokens as it knows them, and the matcher of a grammar.

Both processes come through here: what the API process has found to be a grammar, the engine can build. To
import it takes a tenth of a second, so that is done with the first grammar.
"""

import random
import re
import time
from collections.abc import Iterable
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from legato.core.errors import ModelError, RequestError

# Bounds of the work and the memory that one grammar may take. A lexer's state is one to two kilobytes.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=2_000,
    max_grammar_size=200_000,
    max_lexer_states=25_000,
    verbose_errors=False,
)
MAX_REASON_CHARS = 500

# Computing time of one mask. What schemas in use take is a hundredth of it; runs of tens of thousands of
# characters with no choice between them, which llguidance's own bounds do not see, take more.
MASK_CPU_S = 0.1
TOO_SLOW = (
    "it takes too long to find which tokens it allows; make long constants and fixed repetitions shorter"
)
NUM_TRIED_TOKENS = 24  # of answers, by the check

_FULFILLED = ("NoExtension", "NoExtensionBias", "EndOfSentence")  # ends of a grammar that are no fault

# A schema or a pattern that stands in a grammar at fault: where it stands, and the lines around it.
_PLACE = re.compile(r"at \d+\(\d+\): (?:failed to compile JSON schema: |(?=invalid regex ))")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_DRAWN_REGEX = re.compile(r" \(in regex\): regex parse error:\n.*\nerror: ", re.DOTALL)
_BOUND = re.compile("(lexer|parser) error: too many", re.IGNORECASE)  # of what LIMITS allows
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


def open_token_table(file: Path, eos_ids: Iterable[int]) -> LLTokenizer:
    """The tokens of a tokenizer.json; a grammar that is fulfilled may be followed by any of eos_ids.

    Raises ModelError when its tokens are no bytes of text, or it has none of those ids.
    """
    try:
        return _table(file, sorted(eos_ids))
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise ModelError(f"{file} cannot be used to constrain answers: {error}") from error


def _table(file: Path, eos_ids: list[int]) -> LLTokenizer:
    try:
        return LLTokenizer(str(file), eos_token=eos_ids)
    except ValueError:
        num_tokens = LLTokenizer(str(file)).vocab_size
        known = [
            token_id for token_id in eos_ids if token_id < num_tokens
        ]  # a model may have more than it uses
        if known == eos_ids and known:
            raise
    if not known:
        raise ModelError("the model has no end-of-sequence token, so nothing could end a constrained answer")
    return LLTokenizer(str(file), eos_token=known)


def build_matcher(table: LLTokenizer, grammar: str) -> LLMatcher:
    """The matcher of a text that begins here. Raises RequestError with the reason when there is none."""
    matcher = LLMatcher(table, grammar, log_level=0, limits=LIMITS)
    _check(matcher)
    return matcher


def check_grammar(table: LLTokenizer, grammar: str) -> None:
    """Build a grammar and follow it a little way. Raises RequestError with the reason why it cannot be done.

    The way is one of many, and the same at every call. What is found costly here must not cost half of what
    ends a request later: so an answer that was let in does not fail for a slow moment of the machine.
    """
    matcher, rng = build_matcher(table, grammar), random.Random(0)
    for _ in range(NUM_TRIED_TOKENS):
        start = time.thread_time()
        mask = matcher.compute_bitmask()
        if time.thread_time() - start > MASK_CPU_S / 2:
            raise RequestError(TOO_SLOW, param="grammar", code="invalid_grammar")
        _check(matcher)
        if matcher.is_stopped() or not any(mask):
            return
        matcher.consume_token(_any_of(mask, rng))
        _check(matcher)


def _any_of(mask: bytes, rng: random.Random) -> int:
    """One of the tokens of a mask, which has some."""
    first = rng.randrange(len(mask))
    turned = mask[first:] + mask[:first]
    place = len(turned) - len(turned.lstrip(b"\0"))
    bits = [bit for bit in range(8) if turned[place] >> bit & 1]
    return (first + place) % len(mask) * 8 + rng.choice(bits)


def is_broken(matcher: LLMatcher) -> bool:
    """Whether it can go no further, with no whole answer; its mask is that of an end all the same."""
    return matcher.is_error() or (matcher.is_stopped() and matcher.stop_reason() not in _FULFILLED)


def _check(matcher: LLMatcher) -> None:
    if is_broken(matcher):
        raise RequestError(reason_of(matcher), param="grammar", code="invalid_grammar")


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher can go no further, mostly in llguidance's words."""
    reason = (matcher.get_error() or matcher.stop_reason()).removesuffix("<non-verbose/>").strip()
    if place := _PLACE.match(
        reason
    ):  # the grammar around it is ours: the client gave the schema or the pattern
        reason = _DRAWN_REGEX.sub(": ", _EXCERPT.sub("", reason[place.end() :]))
    if "coerce_one_of" in reason:  # an option that is not the client's to set
        return "the schemas of oneOf may overlap, which is not supported; use anyOf"
    if _BOUND.match(reason):
        reason += "; make the grammar simpler, and long constants and fixed repetitions in it shorter"
    reason = _UNKNOWN_KEYS.sub(r"keywords that are not supported in a schema: \1", reason)
    return reason[:MAX_REASON_CHARS]
