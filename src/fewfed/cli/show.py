"""What a person sees while runs go on, and nothing when nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fewfed.engine.loop import RoundView
from fewfed.runs.cells import Update

if TYPE_CHECKING:
    from collections.abc import Callable

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


class RoundProgress:
    """The observer that draws a run's progress: round, accuracy, loss, rate, time left."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._began = time.monotonic()
        self._first: int | None = None

    def after_round(self, view: RoundView) -> None:
        done = view.clock.round + 1
        self._first = view.clock.round if self._first is None else self._first
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        accuracy, loss = view.record.added.get("accuracy"), view.record.added.get("loss")
        shown = f"accuracy {100 * accuracy:5.2f} %  loss {loss:.3f}" if accuracy is not None else ""
        self._bar.update(self._task, completed=done, info=f"{shown}  {rate:.1f} rounds/s")
        self._bar.refresh()
        for event in view.record.events:
            warn(f"note: {event}")
        for failure in view.record.failed:
            reason = " ".join(failure.reason.split())
            warn(f"left out: round {done}, phase '{failure.phase}', client {failure.client}: {reason}")


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars on a terminal, silence elsewhere. No refresh thread: workers are forked from this process."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}"),
        console=err,
        auto_refresh=False,
        disable=not err.is_terminal,
    )
    with shown(bar):
        yield bar


def shown(bar: Progress) -> AbstractContextManager[object]:
    """The bar on a terminal; elsewhere it is not even started, since ending it would print a line."""
    return bar if err.is_terminal else nullcontext()


def cell_reporter(bar: Progress, cells: int, rounds: int) -> Callable[[Update], None]:
    """One bar for a comparison: finished rounds of all its cells."""
    task = bar.add_task(f"{cells} runs", total=cells * rounds, info="")
    done: dict[str, int] = {}
    last = 0.0

    def report(update: Update) -> None:
        nonlocal last
        done[update.cell.name] = rounds if update.result or update.error else update.round
        accuracy = f"{100 * update.accuracy:5.2f} %" if update.accuracy is not None else ""
        bar.update(task, completed=sum(done.values()), info=f"{update.cell.name} {accuracy}")
        if time.monotonic() - last > 0.2 or update.result:
            bar.refresh()
            last = time.monotonic()
        if update.error:
            warn(f"failed: {update.cell.name}: {' '.join(update.error.split())}")

    return report
