"""What a person sees while runs go on: a bar on a terminal, a line in a notebook, and nothing when nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fewfed.engine.loop import RoundView

if TYPE_CHECKING:
    from rich.console import Console

    from fewfed.runs.cells import Update

_PAUSE = 0.2
"""Seconds between two looks at a display that would change more often than anybody can read."""


class Display(Protocol):
    """Where progress is shown."""

    def show(self, done: int, info: str) -> None:
        """How much is done, and a few words beside it."""

    def tell(self, line: str) -> None:
        """A line that stays."""


class Silence:
    """Nobody looks."""

    def show(self, done: int, info: str) -> None:  # noqa: ARG002
        return

    def tell(self, line: str) -> None:  # noqa: ARG002
        return


class Bar:
    """A bar on a terminal. No refresh thread: workers are forked from this process."""

    def __init__(self, title: str, total: int, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[info]}", markup=False),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task(title, total=total, info="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, info: str) -> None:
        self._bar.update(self._task, completed=done, info=info)
        self._bar.refresh()

    def tell(self, line: str) -> None:
        self._bar.console.print(line, markup=False, soft_wrap=True)


class Line:
    """One line that is written over again and again: for notebooks, and wherever else no bar can be drawn."""

    def __init__(self, title: str, total: int, stream: Any) -> None:
        self._title, self._total, self._stream = title, total, stream
        self._width = 0
        self._last = 0.0

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("\n")

    def show(self, done: int, info: str) -> None:
        if done < self._total and time.monotonic() - self._last < _PAUSE:
            return
        self._last = time.monotonic()
        self._over(f"{self._title}: {done}/{self._total}  {info}".rstrip())

    def tell(self, line: str) -> None:
        self._over(line)
        self._write("\n")
        self._width = 0

    def _over(self, text: str) -> None:
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def display(title: str, total: int, wanted: bool | None = None) -> Iterator[Display]:
    """For a program in Python. None: shown on a terminal and in a notebook, and nothing is printed elsewhere.

    True also shows it where nothing tells that somebody looks, as in the console of an editor; False never does.
    """
    notebook = in_notebook()
    if wanted is False or (wanted is None and not notebook and not is_terminal()):
        yield Silence()
    elif notebook or not is_terminal():
        with Line(title, total, sys.stdout if notebook else sys.stderr) as line:
            yield line
    else:
        from rich.console import Console

        with Bar(title, total, Console(stderr=True, highlight=False)) as bar:
            yield bar


def is_terminal() -> bool:
    """Whether standard error is one. A program may have closed it, or put something else in its place."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, TypeError, ValueError):
        return False


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or type(shell).__module__.startswith("google.colab")


class RoundProgress:
    """The observer that shows a run's progress: round, accuracy, loss, rate, and who was left out."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._began = time.monotonic()
        self._first: int | None = None

    def after_round(self, view: RoundView) -> None:
        done = view.clock.round + 1
        self._first = view.clock.round if self._first is None else self._first
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        accuracy, loss = view.record.added.get("accuracy"), view.record.added.get("loss")
        shown = f"accuracy {100 * accuracy:5.2f} %  loss {loss:.3f}" if accuracy is not None else ""
        self._display.show(done, f"{shown}  {rate:.1f} rounds/s")
        for event in view.record.events:
            self._display.tell(f"note: {event}")
        for failure in view.record.failed:
            reason = " ".join(failure.reason.split())
            self._display.tell(f"left out: round {done}, phase '{failure.phase}', client {failure.client}: {reason}")


def cell_reporter(display: Display, rounds: int) -> Callable[[Update], None]:
    """Shows the finished rounds of all cells of a comparison together; each has at most `rounds`."""
    done: dict[str, int] = {}
    last = 0.0

    def report(update: Update) -> None:
        nonlocal last
        done[update.cell.name] = rounds if update.result or update.error else update.round
        accuracy = f"{100 * update.accuracy:5.2f} %" if update.accuracy is not None else ""
        if time.monotonic() - last > _PAUSE or update.result or update.error:
            display.show(sum(done.values()), f"{update.cell.name} {accuracy}".rstrip())
            last = time.monotonic()
        if update.error:
            display.tell(f"failed: {update.cell.name}: {' '.join(update.error.split())}")

    return report
