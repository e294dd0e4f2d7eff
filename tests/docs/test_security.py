"""SECURITY.md names settings that there are."""

import re
from dataclasses import fields

from legato.cli.options import flag_of
from legato.core.config import EngineConfig, ServerConfig
from tests.docs.references import ROOT

SETTINGS = {flag_of(each.name) for kind in (EngineConfig, ServerConfig) for each in fields(kind)}


def test_every_flag_of_the_threat_model_exists() -> None:
    named = set(re.findall(r"`(--[\w-]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert named - SETTINGS == set()
