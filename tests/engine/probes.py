"""Methods that misbehave in one way each, and a federation small enough to follow by hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.tree import Tree

PATIENCE = 20.0
"""Seconds after which a process stops waiting for another one's sign."""


@dataclass(frozen=True)
class Interrupted(FedAvg):
    """FedAvg in whose loss something happens first, for the clients it is meant for."""

    happens: Callable[[Context], None] = lambda ctx: None

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        self.happens(ctx)
        return super().loss(work, ctx, batch)


@dataclass(frozen=True)
class ExtraTerm(FedAvg):
    """FedAvg with one more loss term that is the same number for one client and zero for the others."""

    client: int = 0
    value: float = 0.0

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        extra = torch.tensor(self.value if ctx.client == self.client else 0.0)
        return {**super().loss(work, ctx, batch), "extra": extra}


def fail(*clients: int) -> Callable[[Context], None]:
    """These clients raise an error."""

    def happens(ctx: Context) -> None:
        if ctx.client in clients:
            raise RuntimeError("the sensor is unplugged")

    return happens


def kill(client: int) -> Callable[[Context], None]:
    """This client takes its process down every time."""
    home = os.getpid()

    def happens(ctx: Context) -> None:
        if ctx.client == client:
            _die(home)

    return happens


def kill_once(client: int, folder: Path) -> Callable[[Context], None]:
    """This client takes its process down the first time it runs anywhere."""
    home = os.getpid()

    def happens(ctx: Context) -> None:
        if ctx.client == client and _first_time(folder / f"{client}-died"):
            _die(home)

    return happens


def kill_both_once(early: int, late: int, folder: Path) -> Callable[[Context], None]:
    """Two clients die once each: `early` while `late` runs, `late` when `early` waits behind it for its second try."""
    home = os.getpid()

    def happens(ctx: Context) -> None:
        if os.getpid() == home:  # The blank client that the schema is derived from.
            return
        if ctx.client == late and _first_time(folder / "late-began"):
            _wait_for(folder / "early-died")
            time.sleep(0.5)
            _die(home)
        if ctx.client == early and not (folder / "early-died").exists():
            _wait_for(folder / "late-began")
            (folder / "early-died").touch()
            _die(home)

    return happens


def _first_time(marker: Path) -> bool:
    if marker.exists():
        return False
    marker.touch()
    return True


def _wait_for(marker: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _die(home: int) -> None:
    if os.getpid() == home:
        raise AssertionError("a test was about to end the process that runs it")
    os.kill(os.getpid(), signal.SIGKILL)
