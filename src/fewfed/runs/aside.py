"""Checks that compute gradients, on a machine with a GPU: in a process of their own.

torch starts a thread for every GPU the first time a process computes a gradient, also one of numbers in main memory,
and what is forked from such a process can compute none. Runs of a comparison are forked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from fewfed import processes
from fewfed.engine.executors.cuda.plugin import has_gpu
from fewfed.errors import ConfigError, DataError, FewfedError, RunError, told

_KINDS = {kind.__name__: kind for kind in (FewfedError, ConfigError, DataError, RunError)}
_GRACE = 1.0
"""Seconds that the process has to end after it has answered."""


def checked(check: Callable[[], object]) -> None:
    """Make a check, in a process of its own where there is a GPU; an error of it is raised here."""

    def only_check() -> None:
        check()

    answered(only_check)


def answered(question: Callable[[], Any]) -> Any:
    """The same with an answer that JSON can carry."""
    if not has_gpu():
        return question()
    answer, status = _asked(question)
    if not answer:
        raise RunError(f"a process that checked the runs died ({processes.cause(status)}): run the command again")
    said = json.loads(answer)
    if "kind" in said:
        raise _KINDS[said["kind"]](said["message"], key=said["key"], value=said["value"])
    return said["answer"]


def refuse_spent_autograd() -> None:
    """Raise where this program has computed gradients already, and so can fork no run that trains."""
    if not has_gpu():
        return
    answer, _ = _asked(_differentiate)
    if not answer or "kind" in json.loads(answer):
        raise RunError(
            "this program has computed gradients already, and on a machine with a GPU the processes of a comparison "
            "then cannot: compare first, or in a fresh program or kernel"
        )


def _differentiate() -> None:
    x = torch.ones(1, requires_grad=True)
    torch.autograd.grad(x.sum(), x)


def _asked(check: Callable[[], object]) -> tuple[bytes, int]:
    """What a process says of a check, as JSON (an answer, or what is wrong), and the status it ended with."""
    reading, writing = os.pipe()

    def work() -> None:
        processes.leave_interrupts_to_parent()
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(_outcome(check), default=str).encode())

    try:
        pid = processes.forked(work)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    status, patience = 0, 0.0  # Ended at once if the reading is interrupted.
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        patience = _GRACE
    finally:
        status = processes.end(pid, patience)
    return answer, status


def _outcome(check: Callable[[], object]) -> dict[str, object]:
    try:
        answer = check()
    except FewfedError as error:
        kind = type(error).__name__ if type(error).__name__ in _KINDS else FewfedError.__name__
        return {"kind": kind, "message": str(error), "key": error.key, "value": error.value}
    except BaseException as error:  # Also `sys.exit()` in somebody's network.
        return {"kind": RunError.__name__, "message": told(error), "key": "", "value": None}
    return {"answer": answer}
