"""What can go wrong for a user, said in one sentence: what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


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
    near = difflib.get_close_matches(name.lower(), options, n=1, cutoff=0.6)
    if near:
        return f"unknown {kind} '{name}': did you mean '{near[0]}'?"
    return f"unknown {kind} '{name}': expected one of {', '.join(options)}"


def in_one_line(error: BaseException) -> str:
    """What a library's error says, for a sentence of ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # A line that only announces (another process's traceback, a place in a kernel) says nothing: the last one does.
    return lines[-1] if lines[0].rstrip().endswith(":") else lines[0]
