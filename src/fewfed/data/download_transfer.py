"""One file over HTTP: resumed where it stopped, checked, and put in place whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fewfed.data.limits import Limits
from fewfed.errors import DataError
from fewfed.version import __version__

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are so far and, where the server says it, the bytes there will be."""

BLOCK = 1 << 18
TIMEOUT_SECONDS = 30.0
FRUITLESS_ATTEMPTS = 3
UNSATISFIABLE = 416
TRANSIENT = (429, 500, 502, 503, 504)


class Unreachable(DataError):
    """A source could not be reached or stopped answering; another source may still do."""


class _Interrupted(Exception):
    """The transfer stopped early for a reason that may pass."""


def fetch(
    url: str, target: Path, checksum: str = "", progress: Progress | None = None, pause_seconds: float = 1.0
) -> str:
    """Download to `target` and return its sha256. `checksum` is 'md5:...' or 'sha256:...' as published.

    What has arrived is kept in `target` + '.part', so that another attempt, or another call, goes on from there.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"cannot download {url}: expected an address that starts with https://")
    if target.is_file() and _matches(target, checksum):
        return digest(target, "sha256")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    fruitless = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, part, progress)
            break
        except _Interrupted as error:
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless == FRUITLESS_ATTEMPTS:
                raise Unreachable(f"{url} could not be downloaded ({error})") from error
            time.sleep(pause_seconds * 2**fruitless)
    verify(part, checksum, url)
    os.replace(part, target)
    return digest(target, "sha256")


def verify(path: Path, checksum: str, url: str) -> None:
    """Delete the file and raise where it is not what was published."""
    if checksum and not _matches(path, checksum):
        algorithm, _, expected = checksum.partition(":")
        found = digest(path, algorithm)
        path.unlink()
        raise DataError(
            f"the download of {url} has {algorithm} {found}: expected {expected}; the file was deleted, run this again"
        )


def _matches(path: Path, checksum: str) -> bool:
    algorithm, _, expected = checksum.partition(":")
    return bool(expected) and digest(path, algorithm) == expected


def digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    start = _size(part)
    headers = {"User-Agent": f"fewfed/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as response:
            _refuse_downgrade(url, response.geturl())
            _store(response, url, part, start, progress, Limits())
    except urllib.error.HTTPError as error:
        _explain_status(error, url, part)
    except urllib.error.URLError as error:
        raise _Interrupted(str(error.reason)) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _store(response: Any, url: str, part: Path, start: int, progress: Progress | None, limits: Limits) -> None:
    resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        part.unlink()
        raise _Interrupted("the server answered with another piece than was asked for")
    done = start if resumed else 0
    length = response.headers.get("Content-Length") or ""
    total = done + int(length) if length.isdecimal() and len(length) < 20 else None
    limits.check_total(url, total or 0)
    with part.open("ab" if resumed else "wb") as file:
        while block := response.read(BLOCK):
            file.write(block)
            done += len(block)
            limits.check_total(url, done)
            if progress is not None:
                progress(done, total)
    if total is not None and done < total:
        raise _Interrupted(f"the connection closed after {done} of {total} bytes")


def _explain_status(error: urllib.error.HTTPError, url: str, part: Path) -> None:
    """Return where the part is complete already; otherwise raise."""
    if error.code == UNSATISFIABLE:
        if error.headers.get("Content-Range") == f"bytes */{_size(part)}":
            return
        part.unlink(missing_ok=True)
        raise _Interrupted("the kept part is longer than the file") from error
    if error.code in TRANSIENT:
        raise _Interrupted(f"HTTP {error.code}") from error
    raise Unreachable(f"{url} could not be downloaded (HTTP {error.code} {error.reason})") from error


def _refuse_downgrade(asked: str, answered: str) -> None:
    if urlsplit(asked).scheme == "https" and urlsplit(answered).scheme != "https":
        raise Unreachable(f"{asked} was redirected to an unprotected address, which is refused")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
