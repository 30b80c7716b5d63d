"""Signals that ask the program to stop: Ctrl-C, the end of a session, the end of the machine.

All of them end a command as Ctrl-C does: what is written stays whole, and a run can be continued. Only the command line
listens to them; a program that uses `fewfed.run` keeps its own handlers.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
"""Not every system has all of them."""


class Stopped(KeyboardInterrupt):
    """Somebody asked the program to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


@dataclass
class Stop:
    """Whether somebody asked the program to stop."""

    signal: int = 0
    """The signal that did; 0 where none did."""

    @property
    def asked(self) -> bool:
        return self.signal > 0

    @property
    def code(self) -> int:
        """The exit code a shell expects of a program that a signal ended."""
        return 128 + self.signal

    def heed(self, number: int, _: FrameType | None) -> None:
        """The handler: the first signal ends what is going on in an orderly way, a second one at once."""
        if self.asked:
            if os.isatty(2):
                os.write(2, b"\x1b[?25h")  # A progress bar hides the cursor while it is shown.
            os._exit(128 + number)
        self.signal = number
        raise Stopped(number)


@contextmanager
def listening() -> Iterator[Stop]:
    """Raise `Stopped` in the main thread when a signal asks the program to stop; afterwards all is as it was.

    A signal that is ignored stays so: `nohup` ignores the end of a session, and a shell Ctrl-C for what runs behind.
    """
    stop = Stop()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, stop.heed)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
