"""Rounds of this checkout against those of another one, alternately, in fresh processes of one call.

    python benchmarks/before_after.py OTHER_CHECKOUT [--repeats 7] [--rounds 4]

Both checkouts time the workloads of their own `benchmarks/overhead.py`, with this Python. A ratio is this checkout's
time over the mean of the other's right before and after it; what is printed is the median over repeats.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from ratios import Ratios

HERE = Path(__file__).parents[1]
TIME = "import sys, torch; torch.set_num_threads(1); import overhead as o; print(o.time_fewfed({!r}, {}, {}))"


def seconds(checkout: Path, workload: str, rounds: int, processes: int) -> float:
    """Time of some rounds after the first, in a process of its own."""
    paths = os.pathsep.join(str(checkout / part) for part in ("src", "benchmarks"))
    done = subprocess.run(
        [sys.executable, "-c", TIME.format(workload, rounds, processes)],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout to compare with")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workloads", nargs="*", default=["harnet", "lenet5"])
    options = parser.parse_args()
    for workload in options.workloads:
        ratios = []
        before = seconds(options.other, workload, options.rounds, options.processes)
        for _ in range(options.repeats):
            ours = seconds(HERE, workload, options.rounds, options.processes)
            after = seconds(options.other, workload, options.rounds, options.processes)
            ratios.append(ours / ((before + after) / 2))
            before = after
        print(f"{workload}: this checkout takes {Ratios(tuple(ratios))} of the other's time", flush=True)


if __name__ == "__main__":
    main()
