"""`legato models check`: what the number formats of a model cost, as a report for people."""

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli.options import add_settings, resolve
from legato.core.config import DEFAULT_MODEL, EngineConfig
from legato.core.errors import ConfigError
from legato.modelfiles import catalog
from legato.observability.logs import set_up_logging
from legato.observability.progress import Progress

if TYPE_CHECKING:
    from legato.cli.models.fidelity import Fidelity

TEXT = Path(__file__).with_name("check_text.txt")

_SETTINGS = frozenset(
    {
        "backend",
        "dtype",
        "kv_cache_dtype",
        "quantization",
        "threads",
        "tokenizer",
        "chat_template",
        "revision",
        "max_model_len",
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help=f"as for legato serve (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="compute this text, not the one that is built in"
    )
    parser.add_argument("--max-kl", type=float, metavar="NATS", help="fail when the mean KL is above this")
    others = {each.name for each in fields(EngineConfig)} - _SETTINGS
    add_settings(parser, EngineConfig, "engine", leave_out=others)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 when it is above --max-kl. Raises ModelError or ConfigError."""
    if arguments.max_kl is not None and not arguments.max_kl >= 0:  # nan neither
        raise ConfigError(f"--max-kl {arguments.max_kl:g}: must be 0 or more")
    config = resolve(EngineConfig, arguments).value
    text = read_text(arguments.text or TEXT)
    set_up_logging("warning")
    from legato.cli.models import fidelity  # numpy and the engine, which the other actions need not wait for

    files = catalog.resolve(config.model, revision=config.revision, report=_tell)
    with Progress(f"checking {files.name}") as progress:
        progress.show(0, "hashes")
        is_verified = catalog.verify(config.model, files)
        found = fidelity.check(replace(config, model=str(files.path)), text, progress.show)
    print("\n".join(lines_of(files.name, found, is_verified=is_verified)))
    if arguments.max_kl is not None and found.text.mean_kl > arguments.max_kl:
        _tell(f"legato: the mean KL, {found.text.mean_kl:.5f} nats, is above --max-kl {arguments.max_kl}")
        return 1
    return 0


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--text {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--text {path}: this is no text in UTF-8") from error


def lines_of(name: str, found: "Fidelity", *, is_verified: bool) -> list[str]:
    """The report: what the model is, a table of weights, a line for each figure of the text, first words."""
    rows = [("WEIGHT", "KEPT AS", "MEAN ERROR", "MAX ERROR")]
    rows += [
        (each.kind, "+".join(each.formats), f"{each.mean:.5f}", f"{each.max:.5f}") for each in found.weights
    ]
    kind_width, kept_width = (2 + max(len(row[column]) for row in rows) for column in (0, 1))
    text = found.text
    ratio = text.perplexity / text.exact_perplexity
    hashes = "as published" if is_verified else "none published that legato knows"
    memory = f"{found.weight_bytes / 1e6:.1f} MB of weights, {found.kv_token_bytes / 1e3:.1f} kB a token"
    figures = (
        ("mean KL", f"{text.mean_kl:.5f} nats"),
        ("max KL", f"{text.max_kl:.5f} nats"),
        ("perplexity", f"{text.perplexity:.3f}, and {text.exact_perplexity:.3f} exact: ratio {ratio:.4f}"),
        ("same first choice", f"{text.agreement:.1%} of positions"),
    )
    return [
        f"{name}: {found.numeric_mode} against {found.exact_mode}",
        f"  {'hashes':19}{hashes}",
        f"  {'parameters':19}{found.num_parameters / 1e6:.1f} million",
        f"  {'memory':19}{memory}",
        "",
        *(f"{kind:{kind_width}}{kept:{kept_width}}{mean:>10}{most:>12}" for kind, kept, mean, most in rows),
        "",
        f"next tokens over a text of {text.num_tokens}:",
        *(f"  {about:19}{value}" for about, value in figures),
        "",
        f"first words after: {found.prompt}",
        f"  {found.words.strip()}",
    ]


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
