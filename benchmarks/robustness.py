"""How well methods hold out against attackers, by attack and by defence, on digits.

    python benchmarks/robustness.py [--seeds 2] [--rounds 30] [--processes N] [--out FILE] [--page docs/robust.md]
    python benchmarks/robustness.py --read benchmarks/results/robustness.json --page docs/robust.md

Twenty sites, all of which take part in every round; four of them attack. The same seeds, splits, attackers and batches
for every cell. Accuracy is the mean of the last ten rounds' on the common test part, which nobody trains on; the
attackers' own rows are no part of it. Runs share the machine's cores, one process each. The page's table, between its
two marks, is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

CLIENTS, ATTACKERS = 20, "0.2"
METHODS = ("fedavg", "fedprox", "scaffold", "flea")
SHARES_ROWS = ("flea",)
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "nobody": {},
    "label-flip": {"attack": "label-flip"},
    "sign-flip": {"attack": "sign-flip", "attack_scale": 3},
    "boost": {"attack": "boost"},
    "noise": {"attack": "noise"},
}
ROW_ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "row-labels": {"attack": "row-labels"},
    "row-features": {"attack": "row-features"},
}
RULES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "clipped": {"robust": "clipped"},
    "median": {"robust": "median"},
    "trimmed": {"robust": "trimmed"},
    "krum": {"robust": "krum"},
    "multi-krum": {"robust": "multi-krum"},
}
ROW_RULES: Mapping[str, Mapping[str, Any]] = {
    "rows 2": {"row_filter": 2},
    "rows 2, margin 1.1": {"row_filter": 2, "row_margin": 1.1},
}
MARKS = ("<!-- robustness table -->", "<!-- end of robustness table -->")


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    attack: str
    defence: str
    seed: int
    rounds: int
    split: str

    @property
    def values(self) -> dict[str, Any]:
        attack = {**ATTACKS, **ROW_ATTACKS}[self.attack]
        who = {"attackers": ATTACKERS} if attack else {}
        return {
            "data": "digits",
            "split": self.split,
            "clients": CLIENTS,
            "cohort": CLIENTS,
            "rounds": self.rounds,
            "epochs": 2,
            "batch": 32,
            "seed": self.seed,
            "executor": "sequential",
            "leak": False,
            **({} if self.method == "scaffold" else {"lr": 0.003}),
            **attack,
            **who,
            **{**RULES, **ROW_RULES}[self.defence],
        }


def cells(seeds: int, rounds: int, split: str) -> Iterator[Cell]:
    """All runs: rules against attacks on what is averaged, row filters where rows are shared."""
    for seed in range(seeds):
        for method in METHODS:
            for attack in ATTACKS:
                for defence in RULES:
                    yield Cell(method, attack, defence, seed, rounds, split)
            if method not in SHARES_ROWS:
                continue
            for attack in ("nobody", "label-flip", *ROW_ATTACKS):
                for defence in (*ROW_RULES, *(("none", "median") if attack in ROW_ATTACKS else ())):
                    yield Cell(method, attack, defence, seed, rounds, split)


def run(cell: Cell) -> dict[str, Any]:
    """One run: its accuracies, and whose packets and rows the defence touched."""
    import torch

    from fewfed.runs.execute import execute
    from fewfed.runs.experiment import resolve
    from fewfed.runs.folder import RunFolder
    from fewfed.runs.prepare import prepare

    torch.set_num_threads(1)
    began = time.perf_counter()
    prepared = prepare(resolve(cell.method, cell.values))
    with tempfile.TemporaryDirectory() as place:
        result = execute(prepared, Path(place) / "run")
        records = RunFolder(Path(place) / "run").metrics()
    bad = prepared.job.adversary.clients if prepared.job.adversary else frozenset()
    return {
        **dataclasses.asdict(cell),
        "accuracy": dataclasses.asdict(result.accuracy),
        "note": result.note,
        "attackers": sorted(bad),
        "defended": touched(records, bad),
        "seconds": time.perf_counter() - began,
    }


def touched(records: list[dict[str, Any]], bad: frozenset[int]) -> dict[str, list[int]]:
    """By what was done, how often to honest clients and how often to attackers (rows: how many of them)."""
    found: dict[str, list[int]] = {}
    for phase in (phase for record in records for phase in record["phases"].values()):
        for what, whom in phase.get("defended", {}).items():
            if isinstance(whom, int):  # Rows that could not be judged are nobody's.
                continue
            counts = whom if isinstance(whom, dict) else dict.fromkeys(whom, 1)
            for client, count in counts.items():
                found.setdefault(what, [0, 0])[int(client) in bad] += count
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Methods and attacks down, defences across: mean accuracy of the last ten rounds over the seeds, in percent."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for one in found:
        values.setdefault((one["method"], one["attack"], one["defence"]), []).append(100 * one["accuracy"]["last10"])
    lines = ["| method | attack | " + " | ".join(RULES) + " |", "|---|---|" + "---|" * len(RULES)]
    for method in METHODS:
        for attack in ATTACKS:
            row = [_shown(values.get((method, attack, defence))) for defence in RULES]
            lines.append(f"| {method} | {attack} | " + " | ".join(row) + " |")
    across = ("none", "median", *ROW_RULES)
    lines += ["", "| method | attack | " + " | ".join(across) + " |", "|---|---|" + "---|" * len(across)]
    for method in SHARES_ROWS:
        for attack in ("nobody", "label-flip", *ROW_ATTACKS):
            row = [_shown(values.get((method, attack, defence))) for defence in across]
            lines.append(f"| {method} | {attack} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _shown(accuracies: list[float] | None) -> str:
    if not accuracies:
        return "-"
    spread = (max(accuracies) - min(accuracies)) / 2
    return f"{mean(accuracies):.1f} ± {spread:.1f}"


def write_page(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    before, rest = page.read_text().split(MARKS[0])
    page.write_text(before + MARKS[0] + "\n" + text + "\n" + MARKS[1] + rest.split(MARKS[1])[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--split", default="dir:0.5")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, help="make the table from kept results instead of running")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced")
    asked = parser.parse_args()
    if asked.read:
        kept = json.loads(asked.read.read_text())
    else:
        began, todo = time.perf_counter(), list(cells(asked.seeds, asked.rounds, asked.split))
        found = []
        with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
            for number, one in enumerate(pool.imap_unordered(run, todo), 1):
                found.append(one)
                print(f"{number}/{len(todo)} {one['method']} {one['attack']} {one['defence']} seed {one['seed']}: "
                      f"{100 * one['accuracy']['last10']:.1f}", file=sys.stderr, flush=True)  # fmt: skip
        found.sort(key=lambda one: [str(one[name]) for name in ("method", "attack", "defence", "seed")])
        kept = {"seconds": time.perf_counter() - began, "processes": asked.processes, "runs": found}
        if asked.out:
            asked.out.write_text(json.dumps(kept, indent=1) + "\n")
    text = table(kept["runs"])
    print(text)
    if asked.page:
        write_page(asked.page, text)


if __name__ == "__main__":
    main()
