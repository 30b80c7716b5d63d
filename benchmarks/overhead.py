"""What fewfed adds to a bare PyTorch loop: the same steps in the same processes, measured side by side in one run.

    python benchmarks/overhead.py [--rounds 4] [--repeats 5] [--json]

Each repeat times the bare loop and fewfed one after the other; the ratio is the median over repeats of paired ratios.
The last part compares the peak memory of 1 000 and 100 000 synthetic clients at the same cohort.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from bare import BareLoop, Work

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.methods.fedavg import FedAvg
from fewfed.plan import Plan
from fewfed.runs.executors import executor_for
from fewfed.runs.experiment import resolve
from fewfed.tasks.classification import Classification
from fewfed.training import Training


def synthetic(shape: tuple[int, ...], classes: int, rows: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Clients made on demand, the same each time they are asked for."""

    def make(client: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(client)
        return torch.randn(rows, *shape, generator=generator), torch.randint(classes, (rows,), generator=generator)

    return make


SETTINGS = {
    "harnet": {"shape": (1, 128, 3), "classes": 6, "rows": 100, "clients": 75, "cohort": 8, "optimizer": "adam"},
    "lenet5": {"shape": (1, 28, 28), "classes": 10, "rows": 50, "clients": 1000, "cohort": 100, "optimizer": "sgd"},
}


class Clock:
    """Remembers when each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_round(self, view: RoundView) -> None:
        self.times.append(time.perf_counter())


def fewfed_rounds(name: str, clients: int, rounds: int, processes: int, observers: Sequence[Observer]) -> None:
    """FedAvg over synthetic clients without evaluation."""
    setting = SETTINGS[name]
    shape, classes = setting["shape"], int(setting["classes"])
    make = synthetic(shape, classes, int(setting["rows"]))
    federation = GeneratedFederation(clients, lambda k: Examples(*make(k)), Examples(*make(-1)), classes)
    training = Training(optimizer=setting["optimizer"], lr=0.01, lr_decay=0.0, epochs=5, batch=32)
    net = networks.build(name, shape, classes, 0)
    job = Job(FedAvg(), net, Classification(classes), federation, training, Plan(0, 32))
    asked = resolve("fedavg", {"executor": "workers", "workers.processes": processes})
    executor = executor_for(asked, job, SimulatedHomes(job), int(setting["cohort"]))
    try:
        run_rounds(job, executor, observers, rounds=rounds, cohort=int(setting["cohort"]))
    finally:
        executor.close()


def time_fewfed(name: str, rounds: int, processes: int) -> float:
    clock = Clock()
    fewfed_rounds(name, int(SETTINGS[name]["clients"]), rounds + 1, processes, [clock])
    return clock.times[-1] - clock.times[0]


def time_bare(name: str, rounds: int, processes: int) -> float:
    setting = SETTINGS[name]
    shape, classes = setting["shape"], int(setting["classes"])

    def module() -> torch.nn.Module:
        net = networks.build(name, shape, classes, 0)
        plain = torch.nn.Sequential(*(net.module(stage) for stage in net.stages))
        for part in plain.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.num_batches_tracked = torch.zeros((), dtype=torch.long)  # As PyTorch makes it.
        return plain

    work = Work(name, module, synthetic(shape, classes, int(setting["rows"])), 32, 5, 0.01, str(setting["optimizer"]))
    loop = BareLoop(work, processes)
    plan = Plan(0, 32)
    times = []
    for number in range(rounds + 1):
        loop.round(plan.cohort(number, int(setting["clients"]), int(setting["cohort"])), number)
        times.append(time.perf_counter())
    loop.close()
    return times[-1] - times[0]


def peak_memory(clients: int, processes: int) -> float:
    """Peak resident MB of a fresh process and its workers over a few rounds."""
    command = [sys.executable, __file__, "--memory-of", str(clients), "--processes", str(processes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--networks", nargs="*", default=list(SETTINGS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        fewfed_rounds("lenet5", options.memory_of, 3, options.processes, [])
        own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print((own + workers) / 1024)
        return
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    for name in options.networks:
        setting, rounds = SETTINGS[name], options.rounds
        pairs = []
        for _ in range(options.repeats):
            before = time_bare(name, rounds, options.processes)
            own = time_fewfed(name, rounds, options.processes)
            after = time_bare(name, rounds, options.processes)
            pairs.append(own / ((before + after) / 2))
        ratios[name] = statistics.median(pairs)
        print(
            f"{name}: {setting['cohort']} of {setting['clients']} clients x {setting['rows']} rows, batch 32, "
            f"5 epochs, {setting['optimizer']}, {options.processes} processes: "
            f"fewfed takes {ratios[name]:.3f} of the bare loop "
            f"(median of {options.repeats}; {min(pairs):.3f} to {max(pairs):.3f})"
        )
    small, large = peak_memory(1_000, options.processes), peak_memory(100_000, options.processes)
    ratios["memory_100000_to_1000_clients"] = large / small
    print(f"peak memory, 1 000 clients: {small:.0f} MB; 100 000 clients: {large:.0f} MB; ratio {large / small:.3f}")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
