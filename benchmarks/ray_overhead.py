"""What the executor `ray` adds to `workers`: the same rounds on the same cores, measured side by side.

    python benchmarks/ray_overhead.py [--setting digits harnet lenet5] [--rounds 12] [--actors 2] [--json]

Both executors live in one process pair at the same time and take turns: each round is run by one, then by the other,
the first of them alternating. The ratio of a setting is the median over rounds of the paired ratios; the quartiles say
how noisy the machine was. Both are exact (no stacks, no channels last), and must end with the same bits.

On a machine that others use, the time that processors worked says more: that of this process while it drives one of the
two, and of all processes that one has, Ray's own included. Its ratio is that of the sums over all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fewfed import Experiment, tree
from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.options import DataOptions
from fewfed.engine.client_store import ClientStore
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Executor
from fewfed.engine.executors.ray.executor import RayExecutor
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.loop import run_rounds
from fewfed.engine.own_folder import OwnFolder
from fewfed.runs.experiment import layered
from fewfed.runs.prepare import Prepared, prepare
from fewfed.runs.remaking import remakeable
from fewfed.tree import Tree


@dataclass(frozen=True)
class Setting:
    """One experiment; data by name, or so many synthetic rows a client."""

    network: str
    clients: int
    cohort: int
    training: dict[str, Any]
    method: str = "fedavg"
    shape: tuple[int, ...] = ()
    classes: int = 10
    rows: int = 0


SETTINGS = {
    "digits": Setting("digits-cnn", 100, 10, {"epochs": 10, "batch": 16}),
    "scaffold": Setting("digits-cnn", 100, 10, {"epochs": 10, "batch": 16}, method="scaffold"),
    "harnet": Setting("harnet", 75, 8, {"epochs": 5, "batch": 32, "optimizer": "adam"}, "fedavg", (1, 128, 3), 6, 100),
    "lenet5": Setting("lenet5", 1000, 100, {"epochs": 5, "batch": 32, "lr": 0.01}, "fedavg", (1, 28, 28), 10, 50),
}


def prepared(setting: Setting) -> Prepared:
    """The setting, ready to run."""
    experiment = Experiment(network=setting.network, clients=setting.clients, cohort=float(setting.cohort), split="iid")
    own = None
    if setting.rows:
        generator = torch.Generator().manual_seed(0)

        def part(count: int) -> Examples:
            x = torch.randn(count, *setting.shape, generator=generator)
            return Examples(x, torch.randint(setting.classes, (count,), generator=generator))

        own = Dataset("synthetic", part(setting.rows * setting.clients), part(1000), setting.classes)
    return prepare(layered(setting.method, {}, experiment, setting.training, DataOptions()), data=own)


def descendants(of: int) -> set[int]:
    """The processes started by another one, and by those in turn."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in {of, *found}} - found:
        found |= more
    return found


def worked(pids: set[int]) -> float:
    """Seconds that processors have worked for some processes."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Contender:
    """One executor with a run of its own, which is taken forward round by round."""

    def __init__(self, ready: Prepared, executor: Executor, processes: set[int]) -> None:
        self._ready, self.executor, self._processes = ready, executor, processes
        self._holdings, self._done = Holdings(), 0
        self.server: Tree | None = None

    def next_round(self) -> tuple[float, float]:
        """Run a round; its seconds, and those that processors worked for it."""
        before = worked(self._processes) + time.process_time()
        seconds = self._round()
        return seconds, worked(self._processes) + time.process_time() - before

    def _round(self) -> float:
        job = self._ready.job
        began = time.perf_counter()
        self.server = run_rounds(
            job,
            self.executor,
            [Evaluate(1, 20, "accuracy")],
            rounds=self._done + 1,
            cohort=self._ready.cohort,
            holdings=self._holdings,
            server=self.server,
            start=self._done,
        )
        self.executor.homes.finish_round()
        self._done += 1
        return time.perf_counter() - began


def measured(name: str, rounds: int, actors: int) -> dict[str, Any]:
    """Paired ratios of one setting."""
    ready = prepared(SETTINGS[name])
    with tempfile.TemporaryDirectory(prefix="fewfed-bench-") as folder:
        place = OwnFolder(Path(folder))
        with remakeable(ready, place) as job:
            workers = Workers(job, options=WorkerOptions(processes=actors, stack=1, layout="plain"))
            forked = descendants(os.getpid())
            ray = RayExecutor(job, SimulatedHomes(job, ClientStore(place.below("clients"))), Options(actors=actors))
            try:
                others = descendants(os.getpid()) - forked
                pair = {"workers": Contender(ready, workers, forked), "ray": Contender(ready, ray, others)}
                times: dict[str, list[float]] = {name: [] for name in pair}
                work = dict.fromkeys(pair, 0.0)
                for number in range(rounds + 2):
                    for each in ("workers", "ray") if number % 2 else ("ray", "workers"):
                        seconds, busy = pair[each].next_round()
                        if number >= 2:  # The first two load code and fill caches.
                            times[each].append(seconds)
                            work[each] += busy
                ends = [dict(tree.leaves(one.server or {})) for one in pair.values()]
                assert all(torch.equal(leaf, ends[1][path]) for path, leaf in ends[0].items()), "bits differ"
            finally:
                workers.close()
                ray.close()
    ratios = [r / w for r, w in zip(times["ray"], times["workers"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "setting": name,
        "rounds": rounds,
        "actors": actors,
        "ratio": middle,
        "quartiles": [low, high],
        "sums": sum(times["ray"]) / sum(times["workers"]),
        "work": work["ray"] / work["workers"],
        **{f"{each}_seconds": statistics.median(found) for each, found in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.setting:
        found = measured(name, given.rounds, given.actors)
        if given.json:
            print(json.dumps(found), flush=True)
        else:
            low, high = found["quartiles"]
            print(
                f"{name}: ray / workers {found['ratio']:.3f} (quartiles {low:.3f} to {high:.3f}, of sums "
                f"{found['sums']:.3f}, work of processors {found['work']:.3f}), a round "
                f"{found['ray_seconds']:.3f} and {found['workers_seconds']:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
