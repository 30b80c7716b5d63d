"""How much memory the processes of a federation hold as rounds go by: coordinator, SuperLink and sites.

    python tools/memory_of_federation.py [--rounds 500] [--every 50] [--sites 3] [--method flea]

All are real processes with TLS on loopback, each site with its own file of digits. Printed is the resident memory of
each after so many rounds, and how much it grew after the first of these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "deploy"))
from federation import NAMES
from real import Real

COORDINATOR, LINK = "coordinator", "SuperLink"
_PATIENCE = 1800.0


@dataclass(frozen=True)
class Reading:
    """Resident megabytes of every process once so many rounds were finished."""

    rounds: int
    megabytes: Mapping[str, float]


def resident(pid: int) -> float:
    """Megabytes of a process that are in memory."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def readings(folder: Path, method: str, rounds: int, every: int, sites: int) -> list[Reading]:
    """Run a federation, and look at its processes after every so many rounds but the last, when they are ending."""
    real = Real(folder, NAMES[:sites])
    try:
        real.start_sites()
        real.serve("run", method, rounds, quorum=sites, more=f"evaluate_every = {every}")
        found = []
        for number in range(every, rounds, every):
            _wait(real, number)
            found.append(Reading(number, _now(real)))
        assert real.processes["run"].wait(_PATIENCE) == 0, real.log("run")
        return found
    finally:
        real.close()


def _wait(real: Real, round: int) -> None:
    path, deadline = real.folder / "run" / "metrics.jsonl", time.monotonic() + _PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < round:
        assert real.processes["run"].poll() is None, real.log("run")
        assert time.monotonic() < deadline, f"round {round} did not come in {_PATIENCE:.0f} s"
        time.sleep(0.05)


def _now(real: Real) -> dict[str, float]:
    sites = {name: resident(real.processes[name].pid) for name in real.names}
    return {COORDINATOR: resident(real.processes["run"].pid), LINK: resident(real.superlink("run")), **sites}


def growth(found: list[Reading], who: str) -> float:
    """By which share a process is larger at its largest than at the first reading, after which it is warm."""
    first, *later = [reading.megabytes[who] for reading in found]
    return max(later) / first - 1


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory of a federation's processes over its rounds.")
    parser.add_argument("--method", default="flea")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--sites", type=int, default=3, choices=range(1, len(NAMES) + 1))
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # One round more, so that everybody is still there after the last of those that are looked at.
        found = readings(Path(folder), given.method, given.rounds + 1, given.every, given.sites)
    who = list(found[0].megabytes)
    print("rounds  " + "  ".join(f"{name:>11}" for name in who))
    for reading in found:
        print(f"{reading.rounds:>6}  " + "  ".join(f"{reading.megabytes[name]:>8.1f} MB" for name in who))
    print("growth  " + "  ".join(f"{growth(found, name):>10.2%} " for name in who))
    print(f"{given.rounds} rounds of {given.method}, {given.sites} sites: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
