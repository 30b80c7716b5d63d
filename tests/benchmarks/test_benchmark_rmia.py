"""The RMIA benchmark runs from reading to its file, and its reference models have seen no candidate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from rmia_cifar import PUBLISHED, main, parted

from fewfed.data.examples import Examples


def test_it_runs_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "rmia.json"
    main(
        [
            "--data",
            "digits",
            "--network",
            "mlp",
            "--epochs",
            "2",
            "--batch",
            "64",
            "--device",
            "cpu",
            "--json",
            str(out),
        ]
    )
    found = json.loads(out.read_text())
    assert len(found["accuracy"]) == 1 + max(PUBLISHED)
    assert found["members"] == 287
    for count, published in PUBLISHED.items():
        value, low, high = found[f"RMIA, {count}"]["auc"]
        assert 0 <= low <= value <= high <= 100
        assert found[f"RMIA, {count}"]["published auc"] == published


def test_candidates_are_apart_from_all_other_rows() -> None:
    rows = Examples(torch.zeros(103, 2), torch.zeros(103, dtype=torch.long))
    members, others, rest = parted(rows, 1)
    assert len(members) == len(others) == 20
    assert sorted(torch.cat([members, others, rest]).tolist()) == list(range(103))
