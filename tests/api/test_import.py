"""The HTTP layer stays light: it loads neither arrays, nor tokenizers, nor the engine."""

import subprocess
import sys


def test_engine_is_started_without_waiting_for_http_and_tokenizers() -> None:
    heavy = ("fastapi", "pydantic", "uvicorn", "tokenizers", "jinja2")
    code = f"import sys, legato.api.engine_service; print([name for name in {heavy} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_importing_the_app_loads_nothing_heavy() -> None:
    heavy = (
        "numpy",
        "tokenizers",
        "jinja2",
        "torch",
        "huggingface_hub",
        "httpx",
        "opentelemetry.sdk",
        "legato.engine",
        "legato.models",
    )
    code = f"import sys, legato.api.app; print([name for name in {heavy} if name in sys.modules])"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"
