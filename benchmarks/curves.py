"""Whole runs on one device: how long they take, evaluation included, and their accuracy curves.

    python benchmarks/curves.py --data cifar10 --split qua:3 --clients 500 --rounds 100 --methods fedavg flea \\
        --precisions bf16 --augment static --json benchmarks/results/cifar10-qua3-h200.json

Seconds run from the call to the finished run folder: reading, splitting, capturing, all rounds, scoring every round.
With several seeds and precisions it also says how far the precisions' means lie apart in standard deviations of seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fewfed.data.readers.options import DataOptions
from fewfed.engine.events import Event
from fewfed.engine.executors.cuda.options import Options
from fewfed.methods.registry import choose
from fewfed.runs.api import run
from fewfed.runs.experiment import Experiment
from fewfed.runs.folder import RunFolder
from fewfed.settings import make
from fewfed.training import Training


def one_run(options: argparse.Namespace, method: str, seed: int, precision: str) -> dict[str, Any]:
    """Run once; the curve and what it took."""
    experiment = Experiment(
        data=options.data,
        split=options.split,
        clients=options.clients,
        cohort=options.cohort,
        rounds=options.rounds,
        network=options.network,
        seed=seed,
    )
    # Other executors have no choice of arithmetic.
    executor = Options(precision=precision) if options.executor == "cuda" else options.executor  # type: ignore[arg-type]
    training = make(Training, {**choose(method).training, "epochs": options.epochs, "batch": options.batch}, "training")
    folder = Path(tempfile.mkdtemp()) / "run"
    began = time.perf_counter()
    augmented = DataOptions(augment=options.augment)
    result = run(method, experiment, training, options=augmented, executor=executor, out=folder)
    seconds = time.perf_counter() - began
    rounds = RunFolder.open(folder)[0].metrics()
    shutil.rmtree(folder.parent)
    curve = [row["accuracy"] for row in rounds if "accuracy" in row]
    events = [str(Event.from_json(event)) for row in rounds for event in row.get("events", [])]
    print(
        f"{method} seed {seed} {precision}: {seconds:.1f} s, best {max(curve):.4f}, last ten {mean_of_last(curve):.4f}"
        f"  {'; '.join(events)[:200]}",
        flush=True,
    )
    return {
        "method": method, "seed": seed, "precision": precision, "seconds": seconds, "best": max(curve),
        "last": result.accuracy.last, "last_ten": mean_of_last(curve), "accuracy": curve, "events": events,
        "training": dataclasses.asdict(training),
    }  # fmt: skip


def mean_of_last(curve: list[float], rounds: int = 10) -> float:
    return statistics.fmean(curve[-rounds:])


def gaps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every method: means by precision, and their distance from the first precision in its deviations of seeds."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        for figure in ("best", "last_ten"):
            values: dict[str, list[float]] = {}
            for row in rows:
                if row["method"] == method:
                    values.setdefault(row["precision"], []).append(row[figure])
            (first, base), *others = values.items()
            for precision, other in others:
                if min(len(base), len(other)) < 2:
                    continue
                spread = statistics.stdev(base)
                means = [statistics.fmean(base), statistics.fmean(other)]
                gap = {
                    "method": method, "figure": figure, "precisions": [first, precision], "means": means,
                    "deviation_of_seeds": spread, "distance_in_deviations": abs(means[0] - means[1]) / spread,
                }  # fmt: skip
                found.append(gap)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="qua:3")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--cohort", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--network", default="auto")
    parser.add_argument("--augment", default=DataOptions().augment)
    parser.add_argument("--executor", default="cuda")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "flea"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--precisions", nargs="+", default=["float32"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.executor != "cuda" and options.precisions != ["float32"]:
        parser.error(f"--precisions {' '.join(options.precisions)}: expected --executor cuda")
    torch.set_num_threads(1)
    rows = []
    for method in options.methods:
        for seed in options.seeds:
            for precision in options.precisions:
                rows.append(one_run(options, method, seed, precision))
                if options.json:
                    write(options, rows)
    for gap in gaps(rows):
        print(gap)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """After every run, so that a later failure costs nothing."""
    record = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "torch": torch.__version__,
        "settings": {name: value for name, value in vars(options).items() if name not in ("json", "data")},
        "data": Path(options.data).name,
        "gaps": gaps(rows),
        "runs": rows,
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
