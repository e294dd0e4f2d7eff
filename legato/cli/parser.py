"""An argument parser whose errors are one line, with the flag that was probably meant."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Takes flags by their whole names alone: a short form of today may be ambiguous tomorrow."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(  # type: ignore[override]  # of the overloads only the one in use
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is unknown here, where the flags of the command are known."""
        known, unknown = super().parse_known_args(args, namespace or argparse.Namespace())
        if unknown:
            argument = unknown[0].partition("=")[0]
            self.error(
                f"unknown argument {argument}{self._suggestion(argument) or self._about_stray(argument)}"
            )
        return known, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _about_stray(self, argument: str) -> str:
        """What the command says, as its default for stray_hint, of a word too many."""
        return "" if argument[:1] == "-" else self.get_default("stray_hint") or ""

    def _suggestion(self, argument: str) -> str:
        near = get_close_matches(argument, self._option_string_actions, n=1) if argument[:1] == "-" else []
        return f"; did you mean {near[0]}?" if near else ""
