"""Many runs at once: each cell of a comparison in a process of its own, as many as the machine has room for.

Finished cells are kept and skipped, unfinished ones continued; a cell that fails costs no other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fewfed import processes
from fewfed.data.examples import Dataset
from fewfed.engine.loop import RoundView
from fewfed.errors import FewfedError, told
from fewfed.runs.cells_file import write_cells
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved
from fewfed.runs.folder import RunFolder
from fewfed.runs.own import NOTHING, Own
from fewfed.runs.packing import Packing
from fewfed.runs.prepare import Prepared, check_rule, data_of, prepare, settled
from fewfed.runs.results import Result
from fewfed.runs.scaling import scaled_by_known

Explain = Callable[[BaseException], tuple[str, bool]]
"""The sentence for an error that ended a cell, and whether it is a fault of this package's own."""

_GRACE = 1.0
"""Seconds that runs have to end by themselves when the comparison is interrupted."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    name: str
    resolved: Resolved
    folder: Path


@dataclass(frozen=True)
class Update:
    """A round of a cell was finished, or the cell came to its end."""

    cell: Cell
    round: int = 0
    accuracy: float | None = None
    loss: float | None = None
    result: Result | None = None
    error: str = ""
    fault: bool = False
    """Whether the error is nobody's but this package's own."""


@dataclass
class _Child:
    cell: Cell
    pid: int
    pipe: int
    rest: bytes = b""
    done: bool = False
    """Whether its run came to an end."""
    gone: bool = False
    """Whether its process did."""

    def leave(self, patience: float) -> int:
        """Wait for its process, not for long, and close the pipe; the status it ended with."""
        self.gone = True
        os.close(self.pipe)
        return processes.end(self.pid, patience)


_Starter = Callable[[Cell], _Child]


@dataclass
class LoadedData:
    """Data sets that are in memory already, for children to find them there; the last few are kept."""

    own: Own = NOTHING
    kept: dict[str, Dataset] = field(default_factory=dict)

    def of(self, resolved: Resolved) -> Dataset:
        if self.own.data is not None:
            return self.own.data
        key = _key(resolved)
        if key not in self.kept:
            while len(self.kept) >= 4:
                self.kept.pop(next(iter(self.kept)))
            check_rule(resolved.experiment)
            found = data_of(resolved)
            decided = settled(resolved, found)
            made = scaled_by_known(found, decided.experiment.split, resolved.options)
            self.kept[_key(decided)] = self.kept[key] = made
        return self.kept[key]


def _key(resolved: Resolved) -> str:
    experiment = resolved.experiment
    return f"{experiment.data} {experiment.split} {resolved.options} {experiment.seed}"


def explained_plainly(error: BaseException) -> tuple[str, bool]:
    """For a program without a command line: what is no user's error is a fault."""
    return (str(error), False) if isinstance(error, FewfedError) else (told(error), True)


def failure_of(endings: Sequence[Update], what: str) -> tuple[str, bool] | None:
    """The sentence for runs that failed, and whether one met a fault of this package's own; None if none failed.

    `what` runs are called there.
    """
    failed = [update for update in endings if update.error]
    if not failed:
        return None
    first = next((update for update in failed if update.fault), failed[0])
    which = "the first" if first is failed[0] else "among them"
    return f"{len(failed)} of {len(endings)} {what} failed; {which}, {first.cell.name}: {first.error}", first.fault


def run_cells(
    cells: Sequence[Cell],
    packing: Packing,
    report: Callable[[Update], None],
    explain: Explain = explained_plainly,
    until: float = math.inf,
    data: LoadedData | None = None,
    track: Sequence[str] = (),
) -> list[Update]:
    """Run all cells; the updates that end them, in their order. `explain` is asked in the process of the cell.

    `until` is a time of `time.monotonic` at which those that still go on are stopped, to be continued another time.
    `data`: what has been read already, and objects of the user's own that all cells are run with.
    `track`: programs that are told of the rounds of each.
    """
    write_cells(cells)
    endings: dict[str, Update] = {}
    waiting: list[Cell] = []
    for cell in cells:
        finished = _finished(cell)
        if finished is not None:
            endings[cell.name] = Update(cell, cell.resolved.experiment.rounds, result=finished)
            report(endings[cell.name])
        else:
            waiting.append(cell)
    # Closed at once if `report` is interrupted: the runs must not go on by themselves.
    shares_machine = min(packing.most, len(cells)) > 1
    start = partial(_start, data=data or LoadedData(), shares_machine=shares_machine, explain=explain, track=track)
    with contextlib.closing(_work(waiting, packing, start, until)) as updates:
        for update in updates:
            if update.result is not None or update.error:
                endings[update.cell.name] = update
            report(update)
    return [endings[cell.name] for cell in cells if cell.name in endings]


def _finished(cell: Cell) -> Result | None:
    try:
        recorded = RunFolder(cell.folder).result()
        return None if recorded is None else Result.from_json(recorded)
    except (FewfedError, OSError):  # Its own process will say what is wrong with its folder, and cost no other.
        return None


def _work(waiting: list[Cell], packing: Packing, start: _Starter, until: float) -> Generator[Update, None, None]:
    children: list[_Child] = []
    try:
        yield from _run_all(waiting, packing, start, children, until)
    finally:
        _end(children)


def _end(children: list[_Child]) -> None:
    """Interrupt the runs that still go on, if any, and wait until they have ended."""
    going = [child for child in children if not child.gone]
    for child in going:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
    processes.end_all([child.pid for child in going], _GRACE)
    for child in going:
        os.close(child.pipe)


def _run_all(
    waiting: list[Cell], packing: Packing, start: _Starter, children: list[_Child], until: float
) -> Iterator[Update]:
    """`children`: those that go on, at any time."""
    queue = list(waiting)
    while (queue or children) and time.monotonic() < until:
        while queue and packing.may_start():
            cell = queue.pop(0)
            try:
                child = start(cell)
            except FewfedError as error:
                yield Update(cell, error=str(error))
            else:
                children.append(child)
                packing.started(child.pid)
        poll = select.poll()
        for child in children:
            poll.register(child.pipe, select.POLLIN | select.POLLHUP)
        left = None if until == math.inf else max(0.0, 1000 * (until - time.monotonic()))
        ready = {descriptor for descriptor, _ in poll.poll(left)} if children else set()
        for child in [child for child in children if child.pipe in ready]:
            for update in _updates(child):
                packing.round_of(child.pid)
                yield update
            if child.done:
                children.remove(child)
                packing.ended(child.pid)


def _updates(child: _Child) -> Iterator[Update]:
    chunk = os.read(child.pipe, 1 << 16)
    child.rest += chunk
    *lines, child.rest = child.rest.split(b"\n")
    for line in lines:
        message = json.loads(line)
        child.done = child.done or "result" in message or "error" in message
        if "result" in message:
            message["result"] = Result.from_json(message["result"])
        yield Update(child.cell, **message)
    if not chunk:
        cause = processes.cause(child.leave(_GRACE))
        if not child.done:
            yield Update(child.cell, error=f"its process died ({cause}): run the command again to continue it")
        child.done = True
    elif child.done:
        child.leave(_GRACE)


def _start(cell: Cell, *, data: LoadedData, shares_machine: bool, explain: Explain, track: Sequence[str]) -> _Child:
    dataset = data.of(cell.resolved)
    reading, writing = os.pipe()

    def prepared() -> Prepared:
        return prepare(cell.resolved, data=data.own.data, network=data.own.network, loaded=dataset)

    def work() -> None:
        processes.interrupt_once()
        os.close(reading)
        torch.set_num_threads(1)
        _run(cell, prepared, shares_machine, explain, writing, track)

    pid = processes.forked(work)
    os.close(writing)
    return _Child(cell, pid, reading)


def _run(
    cell: Cell,
    prepared: Callable[[], Prepared],
    shares_machine: bool,
    explain: Explain,
    pipe: int,
    track: Sequence[str],
) -> None:
    def tell(message: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    class Tell:
        def after_round(self, view: RoundView) -> None:
            wanted = ("round", "accuracy", "loss")
            found = {"round": view.record.round, **view.record.added}
            tell({name: value for name, value in found.items() if name in wanted})

    try:
        comparison = cell.folder.parent
        result = execute(
            prepared(), cell.folder, [Tell()], shares_machine=shares_machine, comparison=comparison, track=track
        )
        tell({"round": result.rounds, "result": result.as_json()})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Also `sys.exit()` in somebody's method: no death without a cause.
        sentence, fault = explain(error)
        tell({"error": sentence, "fault": fault})
        raise
