"""A file over HTTP, gone on with where it broke off."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import IO

from legato.modelfiles.download.wheel import DownloadError, NoWayError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30.0
MAX_FAILURES = 4  # one after another, none of which brought anything
PAUSE_S = 1.0  # after a failure, times how many there were

NETWORK_ERRORS = (OSError, http.client.HTTPException)  # URLError is an OSError


def continue_download(
    opener: urllib.request.OpenerDirector,
    url: str,
    target: Path,
    num_bytes: int,
    tell: Callable[[int], None],
) -> None:
    """Bring a file of `num_bytes` from `url`; what `target` holds of it is not asked for again.

    A server that knows no ranges sends it whole. What breaks off stays, for the next attempt or call.
    tell  called with the bytes that are here
    Raises NoWayError where the server will not give it, DownloadError for a network that fails, OSError for a
    disk that does.
    """
    failures = 0
    while (here := _size(target)) != num_bytes:
        if here > num_bytes:
            target.unlink()
            continue
        reason = _attempt(opener, url, target, num_bytes, tell)
        if _size(target) > here:
            failures = 0
        elif _size(target) < num_bytes:
            failures += 1
            if failures == MAX_FAILURES:
                raise DownloadError(
                    f"{target.stem} broke off after {here} of {num_bytes} bytes ({reason}):"
                    " these are kept, and the same command goes on from there"
                )
            time.sleep(PAUSE_S * failures)


def _attempt(
    opener: urllib.request.OpenerDirector,
    url: str,
    target: Path,
    num_bytes: int,
    tell: Callable[[int], None],
) -> str:
    """What ended it, a whole file included."""
    here = _size(target)
    request = urllib.request.Request(url, headers={"Range": f"bytes={here}-"} if here else {})
    try:
        response = opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                target.unlink()
            elif error.code < 500 and error.code != HTTPStatus.TOO_MANY_REQUESTS:
                raise NoWayError(f"{url}: {error}") from error
            return str(error)
    except NETWORK_ERRORS as error:
        return reason_of(error)
    goes_on = response.status == HTTPStatus.PARTIAL_CONTENT
    with response, target.open("ab" if goes_on else "wb") as file:
        return _copy(response, file, num_bytes, tell)


def _copy(
    response: http.client.HTTPResponse, file: IO[bytes], num_bytes: int, tell: Callable[[int], None]
) -> str:
    while (here := file.tell()) < num_bytes:
        tell(here)
        try:
            chunk = response.read1(min(CHUNK_BYTES, num_bytes - here))
        except NETWORK_ERRORS as error:
            return reason_of(error)
        if not chunk:
            return "the server ended it"
        file.write(chunk)
        file.flush()  # whatever ends this process, it is here
    tell(num_bytes)
    return ""


def reason_of(error: Exception) -> str:
    """What failed, in one line."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return str(reason) or type(error).__name__


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
