"""Rounds of this checkout against those of another one, alternately, in two processes of one call.

    python benchmarks/before_after.py OTHER_CHECKOUT [--rounds 20] [--method scaffold]

Both checkouts run the workloads of their own `benchmarks/overhead.py`, with this Python, and wait after each round
while the other has its turn. A ratio is the time of one round here over the mean of the other's rounds right before and
after it, so that a machine which slows down for a minute slows both; what is printed is the median over rounds. Timing
chooses stacks and memory layout once a process, so `--starts` begins both processes anew, and says the median of each
start. A checkout compared with a copy of itself shows how far such medians are apart by chance.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from ratios import Ratios

HERE = Path(__file__).parents[1]

CHILD = """
import sys, time, torch
torch.set_num_threads(1)
import overhead
from fewfed.methods.registry import choose

overhead.FedAvg = lambda: choose({method!r}).method

class Alternate:
    def __init__(self):
        self.began = 0.0
    def after_round(self, view):
        print(time.perf_counter() - self.began, flush=True)
        sys.stdin.readline()
        self.began = time.perf_counter()

overhead.fewfed_rounds({name!r}, int(overhead.SETTINGS[{name!r}]["clients"]), {rounds}, {processes}, [Alternate()])
"""


class Checkout:
    """A process that runs one round whenever it is told to."""

    def __init__(self, folder: Path, workload: str, rounds: int, processes: int, method: str) -> None:
        paths = os.pathsep.join(str(folder / part) for part in ("src", "benchmarks"))
        self._child = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(name=workload, rounds=rounds, processes=processes, method=method)],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._seconds()  # The first round makes processes and warms caches.

    def round(self) -> float:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return self._seconds()

    def close(self) -> None:
        self._child.communicate("\n")

    def _seconds(self) -> float:
        assert self._child.stdout is not None
        return float(self._child.stdout.readline())


def ratios_of(other: Path, workload: str, rounds: int, processes: int, method: str) -> tuple[float, ...]:
    theirs, ours = (Checkout(folder, workload, rounds + 2, processes, method) for folder in (other, HERE))
    ratios = []
    before = theirs.round()
    for _ in range(rounds):
        here = ours.round()
        after = theirs.round()
        ratios.append(here / ((before + after) / 2))
        before = after
    theirs.close()
    ours.round()
    ours.close()
    return tuple(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout to compare with")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workloads", nargs="*", default=["harnet", "lenet5"])
    parser.add_argument("--method", default="fedavg", help="what clients run; one with state is slower to look after")
    options = parser.parse_args()
    for workload in options.workloads:
        starts = []
        for _ in range(options.starts):
            starts.append(ratios_of(options.other, workload, options.rounds, options.processes, options.method))
            print(f"{workload}: this checkout takes {Ratios(starts[-1])} of the other's time", flush=True)
        print(
            f"{workload}, all starts: {statistics.median(ratio for start in starts for ratio in start):.3f}", flush=True
        )


if __name__ == "__main__":
    main()
