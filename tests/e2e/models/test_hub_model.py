"""A tiny OPT as it lies on the hub: pulled, served and asked, with no other file than the hub has."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from tests.e2e.conftest import end_server, free_port, start_server, wait_until
from tests.e2e.models.local_hub import COMMIT, LocalHub, serve_hub
from tests.models.families import OPT
from tests.tokenization.formats.test_vocab_files import write_folder

pytestmark = pytest.mark.oracle

NAME = "facebook/opt-tiny"
FOUR_FILES = {"pytorch_model.bin", "config.json", "vocab.json", "merges.txt"}
LEGATO = (sys.executable, "-m", "legato")
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OPTForCausalLM]:
    """The folder that the hub has, and Hugging Face's own model of it."""
    folder = write_folder(tmp_path_factory.mktemp("opt"), {})
    vocab_size = len(json.loads((folder / "vocab.json").read_bytes()))
    torch.manual_seed(3)
    model = OPTForCausalLM(OPTConfig(**OPT | {"vocab_size": vocab_size})).eval()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "README.md").write_text("not needed")
    return folder, model


@pytest.fixture
def hub(opt: tuple[Path, OPTForCausalLM]) -> Iterator[LocalHub]:
    with serve_hub(LocalHub(NAME, opt[0])) as served:
        yield served


@pytest.fixture
def surroundings(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes that know this hub alone, and have empty caches."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def pull() -> "subprocess.CompletedProcess[str]":
    return models("pull")


def models(action: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*LEGATO, "models", action, NAME, *flags], capture_output=True, text=True, timeout=60
    )


@pytest.mark.usefixtures("surroundings")
def test_opt_of_the_hub_is_pulled_once_and_answers_as_hugging_faces(
    hub: LocalHub, opt: tuple[Path, OPTForCausalLM], tmp_path: Path
) -> None:
    pulled = pull()
    assert pulled.returncode == 0, pulled.stderr
    snapshot = Path(pulled.stdout.strip())
    assert snapshot == tmp_path / "hf/hub/models--facebook--opt-tiny/snapshots" / COMMIT
    assert {file.name for file in snapshot.iterdir()} == FOUR_FILES

    hub.asked.clear()
    server = start_server(tmp_path, Path(NAME), dtype="float32")
    try:
        body = {"model": NAME, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        status, answer = server.post("/v1/completions", body)
    finally:
        end_server(server)
    assert status == 200
    assert hub.asked == []
    [choice] = answer["choices"]
    prompt_ids = torch.tensor([choice["prompt_token_ids"]])
    with torch.no_grad():
        theirs = opt[1].generate(prompt_ids, max_new_tokens=8, do_sample=False)[0, prompt_ids.shape[1] :]
    assert choice["token_ids"] == theirs.tolist()

    checked = models("check", "--max-model-len", "32")
    assert checked.returncode == 0, checked.stderr
    assert "  hashes             as published" in checked.stdout
    assert f"first words after: {PROMPT}" in checked.stdout


@pytest.mark.usefixtures("surroundings")
def test_server_that_downloads_its_model_is_alive_and_holds_requests(hub: LocalHub, tmp_path: Path) -> None:
    hub.is_open.clear()
    server = start_server(tmp_path, Path(NAME), app=None, answers="/health")
    try:
        status, answer = server.get("/ready")
        assert (status, answer["stage"]) == (503, "opening")
        assert answer["reason"] == f"downloading {NAME} from the Hugging Face hub"
        with ThreadPoolExecutor(1) as client:
            held = client.submit(server.post, "/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
            wait_until(lambda: hub.asked)
            assert not held.done()
            hub.is_open.set()
            status, answer = held.result()
        assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
    finally:
        end_server(server)


@pytest.mark.usefixtures("surroundings")
def test_server_ends_in_the_middle_of_its_download(hub: LocalHub, tmp_path: Path) -> None:
    hub.is_open.clear()
    server = start_server(tmp_path, Path(NAME), app=None, answers="/health", max_num_queued_reqs=1)
    with ThreadPoolExecutor(2) as clients:
        calls = [clients.submit(server.post, "/v1/completions", {"prompt": PROMPT}) for _ in range(2)]
        wait_until(lambda: any(call.done() for call in calls))  # one of them finds no room
        end_server(server)
        answers = [call.result() for call in calls]
    codes = sorted((status, answer["error"]["code"]) for status, answer in answers)
    assert codes == [(429, "queue_full"), (503, "shutting_down")]
    assert server.process.returncode == 0
    assert "end: SIGTERM" in server.log.read_text()


@pytest.mark.usefixtures("surroundings")
def test_connection_that_breaks_off_is_made_again(hub: LocalHub) -> None:
    hub.cut_after = 1000
    pulled = pull()
    assert pulled.returncode == 0, pulled.stderr
    assert [name for name, _ in hub.asked].count("pytorch_model.bin") == 2


@pytest.mark.parametrize("held", ["pytorch_model.bin", "merges.txt"])
@pytest.mark.usefixtures("surroundings")
def test_download_that_was_killed_is_gone_on_with_and_leaves_nothing(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    hub.held = held
    hub.is_open.clear()
    repository = tmp_path / "hf/hub/models--facebook--opt-tiny"
    with subprocess.Popen([*LEGATO, "models", "pull", NAME], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: len(list(repository.glob("snapshots/*/*"))) == 3)
            wait_until(lambda: list(repository.glob("blobs/*.incomplete")))
        finally:
            process.kill()
    shutil.rmtree(
        repository / "trees", ignore_errors=True
    )  # which not every version of huggingface_hub writes
    hub.is_open.set()
    hub.asked.clear()
    pulled = pull()
    assert pulled.returncode == 0, pulled.stderr
    assert [name for name, _ in hub.asked] == [held]
    assert not list(repository.glob("blobs/*.incomplete"))

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "is here already" in pull().stderr


@pytest.mark.usefixtures("surroundings")
def test_file_that_is_not_the_hubs_is_deleted_and_named(hub: LocalHub) -> None:
    hub.damages = True
    pulled = pull()
    assert pulled.returncode == 1
    assert "pytorch_model.bin is damaged: its hash is " in pulled.stderr
    assert "run the same command again" in pulled.stderr

    hub.damages = False
    assert pull().returncode == 0


@pytest.mark.parametrize("is_part_here", [False, True])
@pytest.mark.usefixtures("surroundings")
def test_hub_that_is_not_there_is_told_with_the_remedy(
    opt: tuple[Path, OPTForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_part_here: bool
) -> None:
    if is_part_here:
        repository = tmp_path / "hf/hub/models--facebook--opt-tiny"
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text(COMMIT)
        shutil.copy(opt[0] / "config.json", snapshot)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    pulled = pull()
    assert pulled.returncode == 1
    assert "the hub cannot be reached: connect this machine to it" in pulled.stderr
    assert f"legato models pull {NAME}" in pulled.stderr
    assert "Traceback" not in pulled.stderr
