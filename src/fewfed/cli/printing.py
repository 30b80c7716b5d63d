"""Lines for a person: on standard output what was asked for, on standard error what happens meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import Progress

from fewfed.report.progress import Bar, Display

_PLAIN_WIDTH = 160
"""Columns where output goes to a file or another program: tables are as wide as they need to be."""

out = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
err = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line of standard output, not broken at the width of a terminal and free of markup."""
    out.print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """The same on standard error."""
    err.print(text, markup=False, soft_wrap=True)


class _Warnings:
    """No bar where nobody looks, but lines that stay are for whoever reads standard error later."""

    def show(self, done: int, info: str) -> None:  # noqa: ARG002
        return

    def tell(self, line: str) -> None:
        warn(line)


@contextmanager
def progress(title: str, total: int) -> Iterator[Display]:
    """A bar on a terminal; elsewhere only lines that stay."""
    if not err.is_terminal:
        yield _Warnings()
        return
    with Bar(title, total, err) as bar:
        yield bar


def shown(bar: Progress) -> AbstractContextManager[object]:
    """The bar on a terminal; elsewhere it is not even started, since ending it would print a line."""
    return bar if err.is_terminal else nullcontext()
