"""Every executor of this machine runs a round, and what it computes is held against `sequential`.

Each in a process of its own: whatever becomes of it there, the examination goes on.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fewfed import processes, tree
from fewfed.doctor.finding import Finding
from fewfed.engine.executors.registry import plugins
from fewfed.errors import ConfigError, FewfedError, told
from fewfed.runs.api import run
from fewfed.runs.experiment import Experiment
from fewfed.runs.folder import RunFolder
from fewfed.training import Training
from fewfed.tree import Tree

REFERENCE = "sequential"
_PATIENCE = 90.0
"""Seconds that a round of a few digits may take, however busy the machine is."""
_SLOW_TO_START = frozenset({"ray"})
"""Executors that start a cluster first."""
_CLOSE = 1e-3
"""What floating-point numbers computed in another order may differ by after one round."""


def look(slow_too: bool) -> Iterator[Finding]:
    """The reference first."""
    try:
        known = plugins()
    except ConfigError as error:  # Another package's executor cannot be loaded.
        yield Finding("executors", "plug-ins", "broken", str(error))
        return
    with tempfile.TemporaryDirectory(prefix="fewfed-doctor-") as place:
        folder = Path(place)
        reference = _tried(REFERENCE, folder)
        yield _compared(REFERENCE, reference, None)
        for name in known:
            if name == REFERENCE:
                continue
            if why := known[name].unavailable():
                yield Finding("executors", name, "absent", why)
            elif name in _SLOW_TO_START and not slow_too:
                yield Finding("executors", name, "fine", "not tried, since it starts a cluster first",
                              "'fewfed doctor --all' tries it")  # fmt: skip
            else:
                yield _compared(name, _tried(name, folder), reference)


def _compared(
    name: str, found: tuple[Tree | None, str, float], reference: tuple[Tree | None, str, float] | None
) -> Finding:
    model, problem, seconds = found
    if model is None:
        return Finding("executors", name, "broken", f"cannot run a round of FedAvg: {problem}")
    said = f"a round of FedAvg in {seconds:.1f} s"
    if reference is None or reference[0] is None:
        return Finding("executors", name, "fine", said)
    apart = _gap(model, reference[0])
    if apart == 0:
        return Finding("executors", name, "fine", f"{said}, with the bits of {REFERENCE}")
    if apart < _CLOSE:
        return Finding("executors", name, "fine", f"{said}, {apart:.0e} from {REFERENCE}, which is rounding")
    return Finding("executors", name, "broken", f"{said}, but {apart:.2g} from what {REFERENCE} computes",
                   "please report it: numbers from this executor cannot be trusted here")  # fmt: skip


def _gap(model: Tree, other: Tree) -> float:
    """The largest difference between two models."""
    ours, theirs = dict(tree.leaves(model)), dict(tree.leaves(other))
    if ours.keys() != theirs.keys():
        return float("inf")
    gaps = [float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours if ours[name].numel()]
    return max((float("inf") if gap != gap else gap for gap in gaps), default=0.0)


def _tried(name: str, folder: Path) -> tuple[Tree | None, str, float]:
    """The model after a round, or the problem; and the seconds it took."""
    began = time.monotonic()
    problem = _in_a_process(name, folder / name)
    seconds = time.monotonic() - began
    if problem:
        return None, problem, seconds
    try:
        return RunFolder(folder / name).model(), "", seconds
    except (FewfedError, OSError) as error:
        return None, str(error), seconds


def _in_a_process(name: str, folder: Path) -> str:
    """Run a round in a process of its own; what went wrong, in a sentence."""
    reading, writing = os.pipe()

    def work() -> None:
        processes.leave_interrupts_to_parent()
        os.close(reading)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):  # Libraries talk while they start.
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)
        try:
            _run(name, folder)
        except BaseException as error:
            os.write(writing, (str(error) if isinstance(error, FewfedError) else told(error)).encode())
        else:
            os.write(writing, b"\n")

    status, patience = 0, 0.0
    try:
        pid = processes.forked(work)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            poll = select.poll()
            poll.register(pipe, select.POLLIN | select.POLLHUP)
            answer = pipe.read(1 << 16) if poll.poll(1000 * _PATIENCE) else None
        patience = 5.0 if answer else 0.0
    finally:
        status = processes.end(pid, patience)
    if answer is None:
        return f"it gave no answer within {_PATIENCE:g} s"
    return answer.decode().strip() if answer else f"its process died ({processes.cause(status)})"


def _run(name: str, folder: Path) -> None:
    experiment = Experiment(
        data="digits", split="qua:2", network="mlp", clients=4, cohort=2, rounds=1, executor=name, exact=True
    )
    run("fedavg", experiment, Training(epochs=1), out=folder, progress=False)
