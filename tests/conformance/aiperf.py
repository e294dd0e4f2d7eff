"""aiperf: streamed chat and completions, with its own count of tokens beside the server's."""

import json
from pathlib import Path

from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.live_server import LiveServer

REQUIREMENTS = (("aiperf==0.13.0",),)
FLAGS = ()
ENDPOINTS = ("chat", "completions")
NUM_REQUESTS, ANSWER_TOKENS = 12, 16


def check(environment: Environment, server: LiveServer, model: Path) -> str:
    for endpoint in ENDPOINTS:
        _check_endpoint(environment, server, model, endpoint)
    return f"{NUM_REQUESTS} streams of {ANSWER_TOKENS} tokens on each of {', '.join(ENDPOINTS)}, 4 at once"


def _check_endpoint(environment: Environment, server: LiveServer, model: Path, endpoint: str) -> None:
    folder = environment.output(endpoint)
    with server.counting() as counts:
        environment.run(
            "aiperf", "profile", "--model", server.name, "--url", server.url, "--endpoint-type", endpoint,
            "--streaming", "--tokenizer", model, "--request-count", NUM_REQUESTS, "--concurrency", 4,
            "--isl", 32, "--osl", ANSWER_TOKENS, "--extra-inputs", "ignore_eos:true",
            "--extra-inputs", f"min_tokens:{ANSWER_TOKENS}", "--use-server-token-count",
            "--artifact-dir", folder, "--ui", "none",
        )  # fmt: skip
    report = json.loads((folder / "profile_export_aiperf.json").read_text())
    if report.get("error_request_count") or report["request_count"]["avg"] != NUM_REQUESTS:
        raise ConformanceError(f"{endpoint}: not {NUM_REQUESTS} requests without an error")
    if (counts.num_answered, counts.num_broken, counts.num_refused) != (NUM_REQUESTS, 0, 0):
        raise ConformanceError(f"{endpoint}: the server counted {counts}")
    if report["output_sequence_length"]["min"] != ANSWER_TOKENS != report["output_sequence_length"]["max"]:
        raise ConformanceError(f"{endpoint}: {report['output_sequence_length']} tokens by the client")
