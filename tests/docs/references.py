"""What the documents say of the code: names, diagrams, tables; read from their text."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
READMES = (ROOT / "README.md", ROOT / "README.ko.md")
DOCUMENTS = (*READMES, ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))

_REFERENCE = re.compile(r"`(legato/[\w/]*(?:\.py)?)(?:: ([\w.]+))?`")
_TRANSITION = re.compile(r"^ +(\w+) --> (\w+) : (\w+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def references(text: str) -> list[tuple[str, str]]:
    """(path, dotted name or "") for each `legato/file.py: name` and `legato/file.py` of a document."""
    return _REFERENCE.findall(text)


def transitions(text: str) -> set[tuple[str, str, str]]:
    """(from, to, method) for each labelled arrow of a Mermaid state diagram."""
    return {(origin, target, method) for origin, target, method in _TRANSITION.findall(text)}


def links(text: str) -> list[tuple[str, str]]:
    """(path, anchor) of each relative link."""
    return [link for link in _LINK.findall(text) if "://" not in link[0]]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", _without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def heading_levels(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", _without_fences(text), re.MULTILINE)]


def code_fences(text: str) -> list[str]:
    return re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)


def table_rows(text: str) -> list[list[str]]:
    """The cells of every line of every table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Functions, classes, constants, and methods, fields and attributes, as `name` and `Class.name`."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _names(node.body, f"{prefix}{name}.")
                yield from (f"{prefix}{name}.{each}" for each in _attributes(node))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """What its methods assign to self."""
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
