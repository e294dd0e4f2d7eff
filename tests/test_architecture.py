"""The rules of the house that a linter does not know: sizes of files, functions, folders; who loads what."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "legato").rglob("*.py"))
NATIVE_SOURCES = sorted(path for path in (ROOT / "legato").rglob("*") if path.suffix in (".h", ".cpp"))
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FOLDER_FILES = 400, 60, 12
RUNNING_MODULES = {"pickle", "marshal", "shelve", "cPickle", "dill", "cloudpickle", "joblib"}
RUNNING_CALLS = {
    *("eval", "exec", "__import__", "builtins.eval", "builtins.exec"),
    *("torch.load", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=name_of)
def test_file_and_its_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") < MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{node.name} is too long"


@pytest.mark.parametrize("path", NATIVE_SOURCES, ids=name_of)
def test_native_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") < MAX_FILE_LINES
    assert path.suffix == ".cpp" or text.startswith("//")


@pytest.mark.parametrize("path", [each for each in SOURCES if each.read_text()], ids=name_of)
def test_file_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "begin the file with a line that says what it is for"


def test_folders_are_for_eyes() -> None:
    modules = {path.with_suffix("") for path in [*SOURCES, *NATIVE_SOURCES] if path.name != "__init__.py"}
    counts = Counter(name_of(module.parent) for module in modules)
    assert not {folder: count for folder, count in counts.items() if count > MAX_FOLDER_FILES}
    assert not {path.stem for path in SOURCES} & VAGUE_NAMES


def ways_to_run_data(tree: ast.AST) -> list[str]:
    """Where code loads what may bring code of its own, or runs a text as code."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names if each.name.partition(".")[0] in RUNNING_MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in RUNNING_MODULES:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in RUNNING_CALLS:
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name), keywords=keywords):
                call = f"{owner}.{name}"
                if call in RUNNING_CALLS or any(each.arg == "allow_pickle" for each in keywords):
                    found.append(call)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_that_is_read_can_run(path: Path) -> None:
    assert ways_to_run_data(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import os, marshal as m",
        "from shelve import open",
        "import dill.source",
        "eval('1')",
        "exec(text, {})",
        "__import__('pickle')",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "yaml.load(text, Loader)",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "def f():\n  if x:\n    from pickle import loads",
    ],
)
def test_ways_to_run_data_are_seen(code: str) -> None:
    assert len(ways_to_run_data(ast.parse(code))) == 1


@pytest.mark.parametrize("code", ["json.load(f)", "ast.literal_eval(t)", "re.compile(p)", "model.eval()"])
def test_harmless_code_is_not_taken_for_it(code: str) -> None:
    assert ways_to_run_data(ast.parse(code)) == []


def modules_loaded_by(statement: str) -> set[str]:
    """Top names of all modules in a fresh interpreter after the statement."""
    script = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.check_output([sys.executable, "-c", script], text=True, cwd=ROOT).split())


def test_engine_process_loads_no_web_framework_and_no_torch() -> None:
    loaded = modules_loaded_by(
        "import legato.engine.__main__, legato.engine.assembly, legato.backends.reference"
    )
    assert "numpy" in loaded
    assert not loaded & {"fastapi", "uvicorn", "pydantic", "tokenizers", "torch", "transformers", "asyncio"}


def test_api_process_loads_no_arrays_and_no_torch() -> None:
    loaded = modules_loaded_by("import legato.api.asgi, legato.frontend.llm")
    assert "fastapi" in loaded
    assert not loaded & {"numpy", "torch", "transformers"}


def test_package_itself_is_lazy() -> None:
    assert not modules_loaded_by("import legato") & {"fastapi", "numpy", "msgspec", "tokenizers"}
