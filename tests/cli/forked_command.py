"""The command line in a process of its own that need not load anything first: forked from the one that tests it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from fewfed.processes import forked
from run_support import wait_until


@dataclass
class Command:
    """A command at work, with its output in files."""

    pid: int
    folder: Path
    status: int | None = None

    @property
    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def code(self) -> int:
        """How it ended, once it has; as a shell would say it."""
        wait_until(lambda: self.has_ended)
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()


def start(
    arguments: Sequence[str], folder: Path, *, output: str = "stdout", before: Callable[[], object] = lambda: None
) -> Command:
    """Start a command in a folder; `before` is done first, in its process. `output` is where it writes."""
    for name in ("stdout", "stderr"):
        (folder / name).touch()
    return Command(forked(lambda: _become(arguments, folder, output, before)), folder)


def _become(arguments: Sequence[str], folder: Path, output: str, before: Callable[[], object]) -> NoReturn:
    from fewfed.cli import main

    torch.set_num_threads(1)  # OpenMP's other threads did not come along, and waiting for them never ends.
    os.chdir(folder)
    os.setpgid(0, 0)
    sys.stdout, sys.stderr = open(output, "w"), open("stderr", "w")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stderr.fileno(), 2)
    sys.argv = ["fewfed", *arguments]
    before()
    try:
        main()
    except SystemExit as ending:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(ending.code or 0))
    os._exit(98)
