"""Run folders made by the program's own writer, without training: as many as a test needs, with known numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfed.runs.experiment import resolve
from fewfed.runs.folder import RunFolder
from fewfed.runs.results import Result, summarise


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    curve: Sequence[float] = (0.5, 0.6, 0.7),
    *,
    metric: str = "accuracy",
    values: Mapping[str, Any] | None = None,
    classes: Sequence[str] = ("a", "b"),
    sites: Sequence[str] = (),
    counts: Sequence[Sequence[int]] = ((3, 0), (1, 4)),
    note: str = "",
    label: str = "",
    finished: bool = True,
    record: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    split: Mapping[str, Any] | None = None,
) -> Path:
    """A run whose metric went along a curve. `record`: more of every round; `result`: more of the result; `split`: more
    of what is said of the split."""
    clients = len(counts)
    settings = {"rounds": len(curve) + (0 if finished else 5), "seed": seed, "clients": clients, "metric": metric}
    resolved = resolve(method, {**settings, "cohort": 2.0, "split": "qua:2", **(values or {})})
    name = label or resolved.chosen.method.label
    divided = {
        "rule": "qua:2", "clients": clients, "rows": int(np.sum(counts)), "sparsity": 0.25,
        "sizes": {"smallest": 3, "median": 4.0, "mean": 4.0, "largest": 5},
        "by_class": {"classes": list(classes), "clients": [list(row) for row in counts]},
        **(split or {}),
    }  # fmt: skip
    run = RunFolder.create(folder, {**resolved.as_json(), "label": name, "inputs": {}}, divided, {"clients": clients})
    run.restore(lambda states: None, len(curve))  # The first line continues from the configuration.
    for number, value in enumerate(curve, 1):
        run.append(
            {
                "round": number, "lr": 0.001, "steps": 4, "seconds": 0.5, "train_seconds": 0.4, "failed": [],
                "events": [], "bytes": {"up": 1_000_000, "down": 2_000_000},
                "phases": {"train": {"bytes_up": 1_000_000, "bytes_down": 2_000_000, "clients": 2, "steps": 4}},
                "accuracy": 0.5, "loss": 1.0, metric: value, **(record or {}),
            }
        )  # fmt: skip
    if finished:
        summary = summarise(run.metrics(), metric)
        made = Result(
            name, resolved.chosen.preset, "digits", "qua:2", clients, len(curve), seed,
            folder=str(folder), note=note, metric=metric, **summary,
        )  # fmt: skip
        last = curve[-1]
        scores = {
            "test_rows": 20, "metrics": {metric: last},
            "per_class": [{"class": name, "rows": 10, "recall": last} for name in classes],
            "per_site": [
                {"site": name, "train_rows": 5 + place, "test_rows": 4, "accuracy": last, metric: last}
                for place, name in enumerate(sites)
            ],
        }  # fmt: skip
        run.finish({"params": {"w": torch.zeros(2)}}, scores, {**made.as_json(), **(result or {})})
    return folder


def rising(rounds: int, end: float, seed: int = 0) -> list[float]:
    """A curve that rises to about `end`, with noise of its own."""
    random = np.random.default_rng(seed)
    steps = 1 - np.exp(-np.arange(1, rounds + 1) / (rounds / 5))
    return [float(min(0.999, max(0.001, value))) for value in end * steps + 0.01 * random.standard_normal(rounds)]
