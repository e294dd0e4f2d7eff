"""aiperf: streamed chat and completions, with its own count of tokens beside the server's."""

import json
from pathlib import Path

from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.live_server import LiveServer

REQUIREMENTS = (("aiperf==0.13.0",),)
FLAGS = ()
ENDPOINTS = ("chat", "completions")
NUM_REQUESTS, ANSWER_TOKENS = 12, 16


REPOSITORY = "legato/default-model"  # where a client without the network takes no folder for a tokenizer


def check(environment: Environment, server: LiveServer, model: Path) -> str:
    _lay_into_cache(environment, model)
    for endpoint in ENDPOINTS:
        _check_endpoint(environment, server, endpoint)
    return f"{NUM_REQUESTS} streams of {ANSWER_TOKENS} tokens on each of {', '.join(ENDPOINTS)}, 4 at once"


def _check_endpoint(environment: Environment, server: LiveServer, endpoint: str) -> None:
    folder = environment.output(endpoint)
    with server.counting() as counts:
        environment.run(
            "aiperf", "profile", "--model", server.name, "--url", server.url, "--endpoint-type", endpoint,
            "--streaming", "--tokenizer", REPOSITORY, "--request-count", NUM_REQUESTS, "--concurrency", 4,
            "--isl", 32, "--osl", ANSWER_TOKENS, "--extra-inputs", "ignore_eos:true",
            "--extra-inputs", f"min_tokens:{ANSWER_TOKENS}", "--use-server-token-count",
            "--artifact-dir", folder, "--ui", "none",
        )  # fmt: skip
    report = json.loads((folder / "profile_export_aiperf.json").read_text())
    if report.get("error_request_count") or report["request_count"]["avg"] != NUM_REQUESTS:
        raise ConformanceError(f"{endpoint}: not {NUM_REQUESTS} requests without an error")
    if (counts.num_answered, counts.num_broken, counts.num_refused) != (NUM_REQUESTS, 0, 0):
        raise ConformanceError(f"{endpoint}: the server counted {counts}")
    lengths = report["output_sequence_length"]
    if {lengths["min"], lengths["max"]} != {ANSWER_TOKENS}:
        raise ConformanceError(
            f"{endpoint}: not {ANSWER_TOKENS} tokens in each answer, by the client: {lengths}"
        )
    if counts.generated_tokens != NUM_REQUESTS * ANSWER_TOKENS:
        raise ConformanceError(f"{endpoint}: {counts.generated_tokens} tokens, by the server")


def _lay_into_cache(environment: Environment, model: Path) -> None:
    """Put the exported model where the hub's library finds what it has downloaded."""
    repository = environment.home / "hf/hub" / f"models--{REPOSITORY.replace('/', '--')}"
    for name in ("refs", "snapshots"):
        (repository / name).mkdir(parents=True, exist_ok=True)
    (repository / "refs/main").write_text("exported")
    snapshot = repository / "snapshots/exported"
    snapshot.unlink(missing_ok=True)
    snapshot.symlink_to(model, target_is_directory=True)
