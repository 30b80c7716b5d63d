"""What can go wrong for a user, said in one sentence: what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_LONGEST = 500
"""Characters of somebody else's error that are shown: a message may hold a whole array."""

_LONGEST_NAME = 100


class FewfedError(Exception):
    """Base of every error a user can cause or meet. The command line prints it without a traceback, exit code 2.

    `key` is the setting it speaks of and `value` what was given for it, where there is one, so that whoever knows where
    that was written can say so.
    """

    def __init__(self, message: str, *, key: str = "", value: object = None) -> None:
        super().__init__(message)
        self.key = key
        self.value = value

    def at(self, place: str) -> FewfedError:
        """The same error with the place it comes from."""
        return type(self)(f"{place}: {self}", key=self.key, value=self.value)


class ConfigError(FewfedError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(FewfedError):
    """Data is missing, damaged or does not fit what was asked of it."""


class RunError(FewfedError):
    """A run cannot be started, continued or written."""


@contextmanager
def concerning(key: str, value: object = None) -> Iterator[None]:
    """Errors raised inside speak of this setting unless they name another."""
    try:
        yield
    except FewfedError as error:
        if not error.key:
            error.key, error.value = key, value
        raise


def did_you_mean(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for an unknown name: the nearest known one, or the whole list where it is short."""
    options = sorted(known)
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]} ..."
    near = difflib.get_close_matches(name.lower(), options, n=1, cutoff=0.6)
    if near:
        return f"unknown {kind} '{name}': did you mean '{near[0]}'?"
    return f"unknown {kind} '{name}': expected one of {', '.join(options)}"


def in_one_line(error: BaseException) -> str:
    """What a library's error says, for a sentence of ours."""
    lines = _text_of(error).strip().splitlines() or [type(error).__name__]
    # A line that only announces (another process's traceback, a place in a kernel) says nothing: the last one does.
    return lines[-1] if lines[0].rstrip().endswith(":") else lines[0]


def told(error: BaseException) -> str:
    """An error of somebody else's code in one line: its type, what it says, and the line of their file it came from."""
    text = " ".join(_text_of(error).split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    place = place_of(error)
    return ": ".join(filter(None, (type(error).__name__, text))) + (f" ({place})" if place else "")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # An error that cannot even be shown is still an error.
        return ""


def place_of(error: BaseException, *, methods: bool = True) -> str:
    """Where an error arose in a file of the user's, as in "in loss, mine.py, line 12"; empty if it did not.

    `methods`: the methods of this package count as well.
    """
    frames = [
        (frame.f_code.co_name, Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_own(frame.f_code.co_filename, methods)
    ]
    if not frames:
        return ""
    (function, _, _), (_, file, line) = frames[0], frames[-1]
    return (f"in {function}, " if function.isidentifier() else "") + f"{file.name}, line {line}"


@cache
def _is_own(filename: str, methods: bool) -> bool:
    """Whether a file is neither this package's, nor a library's, nor none at all."""
    file, package = Path(filename), Path(__file__).parent
    if filename.startswith("<"):
        return False
    if file.is_relative_to(package):
        return methods and file.is_relative_to(package / "methods") and file.name != "registry.py"
    if {"site-packages", "dist-packages"} & set(file.parts):
        return False
    return not any(file.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
