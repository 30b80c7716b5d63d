"""What an adapter is told and what it hands back: a JSON file with the end of every round and the steps it counted."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import Value
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from peers.settings import SETTINGS, Setting


@dataclass(frozen=True)
class Order:
    """What the runner asks of an adapter."""

    setting: Setting
    rounds: int
    processes: int
    result: Path


def order() -> Order:
    """Read the order from the command line and keep torch to one thread."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setting", choices=list(SETTINGS), required=True)
    parser.add_argument("--rounds", type=int, required=True, help="all rounds, the first one included")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    return Order(SETTINGS[given.setting], given.rounds, given.processes, given.result)


@dataclass
class Clock:
    """Remembers when each round ended."""

    ends: list[float] = field(default_factory=list)

    def tick(self) -> None:
        self.ends.append(time.perf_counter())


class StepCounter:
    """Counts `step()` of torch optimisers, in this process and in those forked from it."""

    def __init__(self) -> None:
        self._count = Value("q", 0)

    @property
    def total(self) -> int:
        return int(self._count.value)

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        optimizer.register_step_post_hook(self._add)
        return optimizer

    def watch_all(self) -> StepCounter:
        register_optimizer_step_post_hook(self._add)
        return self

    def _add(self, *_: Any) -> None:
        with self._count.get_lock():
            self._count.value += 1


def hand_back(
    asked: Order, clock: Clock, steps: int, processes: int, first: Mapping[str, Tensor], last: Mapping[str, Tensor]
) -> None:
    """Write the result. How far the model moved tells whether everybody really trained and averaged."""
    # Running statistics are left out: not everybody averages them.
    names = [name for name in first if name.endswith((".weight", ".bias")) and name in last]
    moved = math.sqrt(sum(float((last[name].double() - first[name].double()).square().sum()) for name in names))
    result = {"ends": clock.ends, "steps": steps, "processes": processes, "moved": moved}
    asked.result.write_text(json.dumps(result))
    print(f"{asked.setting.name}: {len(clock.ends)} rounds, {steps} optimiser steps, the model moved by {moved:.4f}")
