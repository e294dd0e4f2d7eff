"""lm-eval: log-likelihoods and greedy continuations over HTTP, against the same weights in transformers."""

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.live_server import LiveServer

REQUIREMENTS = (("torch==2.13.0",), ("lm_eval[api,hf]==0.4.13",))
FLAGS = ("--dtype", "float32")  # as transformers computes here
TASKS = Path(__file__).parent / "tasks"
TASK_NAMES = ("legato_choices", "legato_continuations")
TOLERANCE = 1e-3  # of a log-likelihood: sums of float32, in another order


def check(environment: Environment, server: LiveServer, model: Path) -> str:
    api = f"model={server.name},base_url={server.url}/v1/completions,num_concurrent=4,tokenized_requests=True"
    local = f"tokenizer={model},tokenizer_backend=huggingface"
    with server.counting() as counts:
        ours = _evaluate(environment, "legato", "local-completions", f"{api},{local}", batch_size=3)
    num_asked = sum(len(answers) for task in ours.values() for answers in task["samples"].values())
    if (counts.num_answered, counts.num_broken, counts.num_refused) != (num_asked, 0, 0):
        raise ConformanceError(f"{num_asked} answers by the client, {counts} by the server")
    theirs = _evaluate(environment, "transformers", "hf", f"pretrained={model},dtype=float32", batch_size=1)
    for task in TASK_NAMES:
        _compare(task, ours[task], theirs[task])
    scores = ", ".join(f"{task} {_scores(ours[task])}" for task in TASK_NAMES)
    return f"the scores of transformers, from {counts.num_answered} answers: {scores}"


def _evaluate(
    environment: Environment, name: str, model: str, model_args: str, *, batch_size: int
) -> dict[str, dict[str, Any]]:
    """Task -> its results and samples."""
    folder = environment.output(name)
    with chdir(TASKS):  # the tasks name their data by file
        environment.run(
            "lm_eval", "--model", model, "--model_args", model_args, "--tasks", ",".join(TASK_NAMES),
            "--include_path", TASKS, "--batch_size", batch_size, "--device", "cpu",
            "--output_path", folder, "--log_samples", "--seed", 1234,
        )  # fmt: skip
    [results] = folder.rglob("results_*.json")
    found = {}
    for task in TASK_NAMES:
        [samples] = folder.rglob(f"samples_{task}_*.jsonl")
        rows = [json.loads(row) for row in samples.read_text().splitlines()]
        found[task] = {
            "results": json.loads(results.read_text())["results"][task],
            "samples": {row["doc_id"]: row["filtered_resps"] for row in rows},
        }
    return found


def _compare(task: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    if _scores(ours) != _scores(theirs):
        raise ConformanceError(f"{task}: {_scores(ours)} by legato, {_scores(theirs)} by transformers")
    if ours["samples"].keys() != theirs["samples"].keys():
        raise ConformanceError(f"{task}: not the same documents")
    for doc_id, answer in ours["samples"].items():
        if not _is_same(answer, theirs["samples"][doc_id]):
            raise ConformanceError(f"{task}: {answer} by legato, {theirs['samples'][doc_id]} by transformers")


def _is_same(ours: list[Any], theirs: list[Any]) -> bool:
    """Texts are equal; a log-likelihood is near, and is of the greedy choice or is not."""
    if ours and isinstance(ours[0], list):
        return len(ours) == len(theirs) and all(
            abs(float(mine[0]) - float(other[0])) <= TOLERANCE and mine[1] == other[1]
            for mine, other in zip(ours, theirs, strict=True)
        )
    return ours == theirs


def _scores(evaluated: dict[str, Any]) -> dict[str, float]:
    return {
        metric.partition(",")[0]: value
        for metric, value in evaluated["results"].items()
        if isinstance(value, float) and "stderr" not in metric
    }
