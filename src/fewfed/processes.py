"""Processes that were started by this one: none outlives it, and none can keep it from ending."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1
"""A name of <sys/prctl.h>, which Python does not know."""

_ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals by which a user or the system asks a program to end."""

_PAUSE = 0.02
"""The longest pause, in seconds, between two looks at a process that is to end."""


def end_with(parent: int) -> None:
    """Let this process die when its parent does, whatever it is doing then.

    A worker in an endless loop would go on for ever, and a run that outlives its comparison would write beside the one
    that continues it.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only; elsewhere it ends when it next turns to its parent.
    if prctl is not None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # It died before that.
        os._exit(1)


def forked(work: Callable[[], object]) -> int:
    """Do some work in a process of its own, which ends with this one; its number. Exit code 1 where it fails.

    A request to end that comes while the process is made is heard afterwards, and that process is ended first. The new
    process hears none before it is at its work: what is raised earlier would leave this function there, and the new
    process would go on with what its parent does.
    """
    parent = os.getpid()
    heard: list[int] = []
    with _only_noted(heard):
        pid, heard_before = _fork_that_hears_nothing()
    if pid == 0:
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard_before)
            end_with(parent)
            work()
            status = 0
        finally:
            os._exit(status)
    try:
        for number in heard:
            signal.raise_signal(number)
    except BaseException:
        end(pid, 0.0)
        raise
    return pid


def _fork_that_hears_nothing() -> tuple[int, set[int]]:
    """The new process's number, 0 there, where signals that ask it to end wait; and the signals that waited before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid, before


@contextmanager
def _only_noted(heard: list[int]) -> Iterator[None]:
    """While this lasts, signals that ask this process to end are only noted.

    Python runs functions of its libraries around a fork and ignores what is raised in them: a Ctrl-C would be lost.
    """

    def note(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # In others no signal is heard anyway.
            for each in _ENDINGS:
                if callable(signal.getsignal(each)):
                    before[each] = signal.signal(each, note)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: the parent ends this one. Other signals end it."""
    for number in _ENDINGS:
        if callable(signal.getsignal(number)):  # What the parent does at a signal is nothing for its children.
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def interrupt_once() -> None:
    """Turn the first signal that asks this process to end into a `KeyboardInterrupt`, and ignore those after it.

    Ctrl-C reaches a child as well as its parent, which then asks the child to end: the second request must not disturb
    what it does at the first.
    """

    def unheard(_number: int, _frame: FrameType | None) -> None:
        """Not SIG_IGN: Python complains aloud about a signal that had come just before that was set."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in _ENDINGS:
            signal.signal(each, unheard)
        raise KeyboardInterrupt

    for each in _ENDINGS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # As `nohup` has it.
            signal.signal(each, interrupt)


def end(pid: int, patience: float) -> int:
    """Wait for a child that is about to end, but not for long: then it is killed. The status it ended with."""
    return end_all([pid], patience)[pid]


def end_all(pids: Collection[int], patience: float) -> dict[int, int]:
    """The same for several at once. Whatever interrupts the waiting, none of them is left."""
    statuses: dict[int, int] = {}
    deadline, pause = time.monotonic() + patience, _PAUSE / 32
    try:
        while not _gather(pids, statuses) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(_PAUSE, 2 * pause)
    finally:
        for pid in pids:
            if pid not in statuses:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # Also ends a process that is stopped.
        for pid in pids:
            if pid not in statuses:
                statuses[pid] = _status(pid, 0) or 0
    return statuses


def cause(status: int) -> str:
    """How a process ended, in words."""
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def _gather(pids: Collection[int], statuses: dict[int, int]) -> bool:
    """Note those that have ended; whether all have."""
    for pid in pids:
        if pid not in statuses and (status := _status(pid, os.WNOHANG)) is not None:
            statuses[pid] = status
    return len(statuses) == len(pids)


def _status(pid: int, how: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, how)
    except ChildProcessError:  # Somebody else has waited for it.
        return 0
    return status if ended else None
