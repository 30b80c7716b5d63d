"""Rows that opted out are those of the site's file, whatever is drawn, held back or left out afterwards."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import fewfed
from fewfed import Dataset, Examples, Experiment, Training
from fewfed.data.leave_out import leave_out
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.deploy.site.own_rows import OwnRows, parted
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError
from fewfed.privacy.policy import PolicyGate
from fewfed.privacy.record import Record
from fewfed.runs.experiment import layered
from fewfed.runs.prepare import prepare
from fewfed.runs.remaking import job_in, write

SITES = ("north", "south", "west")
ROWS = 90
OUT = (0, 3, 4, 6, 17, 35, 60, 89)


def visits(folder: Path, *, holes: bool = False) -> str:
    """A table of three sites whose first column is the number of the row."""
    path = folder / "visits.csv"
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "b", "label", "site", "test"])
        for row in range(ROWS):
            b = "" if holes and row % 7 == 1 else str(row % 5)
            writer.writerow([row, b, "xy"[row % 2], SITES[row // 2 % 3], int(row % 4 == 3)])
    return str(path)


def experiment(folder: Path, policy: str, **changes: Any) -> Experiment:
    (folder / "policy.toml").write_text(policy)
    own = {"data": visits(folder, holes=changes.pop("holes", False)), "split": "site", "clients": 0, "cohort": 3.0}
    fixed = {"rounds": 1, "rows_public": True, "record": "packets", "policy": str(folder / "policy.toml")}
    return Experiment(**{**own, **fixed, **changes})


def sent(folder: Path, policy: str, options: DataOptions, **changes: Any) -> dict[int, list[int]]:
    """The numbers of all rows that left, by client."""
    chosen = experiment(folder, policy, **changes)
    fewfed.run("feddata", chosen, Training(epochs=1), values={"share": 1.0}, options=options, out=folder / "run")
    (setup,) = (one for one in Record.open(folder / "run").exchanges(1) if one.phase == "setup")
    return {client: _numbers(packet.arrays["x"]) for client, packet in setup.packets.items()}


def _numbers(rows: Tensor) -> list[int]:
    return sorted(int(row) for row in rows.flatten(1)[:, 0].round().tolist())


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a test part that is drawn": ({}, {}),
    "a test part that a column marks": ({"test_column": "test"}, {}),
    "rows held back": ({}, {"validation": 0.3}),
    "rows left out": ({"missing": "drop"}, {"holes": True}),
    "all of it": ({"missing": "drop", "test_column": "test"}, {"holes": True, "validation": 0.3}),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_file_that_opted_out_stay(tmp_path: Path, name: str) -> None:
    options, changes = CASES[name]
    for part in ("without", "with"):
        (tmp_path / part).mkdir()
    chosen = DataOptions(normalise="none", **options)
    without = sent(tmp_path / "without", "", chosen, **changes)
    found = sent(tmp_path / "with", f"opt_out = {list(OUT)}\n", chosen, **changes)
    assert found == {client: [row for row in rows if row not in OUT] for client, rows in without.items()}
    assert any(row in OUT for rows in without.values() for row in rows)


def test_a_site_speaks_of_its_own_rows_only(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    options = DataOptions(normalise="none", test_column="test")
    everything = sent(tmp_path / "all", "", options)
    found = sent(tmp_path, f"[site.north]\nopt_out = {list(range(ROWS))}\n", options)
    assert found == {**everything, 0: []}


def test_a_row_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    options = DataOptions(normalise="none", missing="drop")
    with pytest.raises(ConfigError, match=r"opt_out names row 90, which is not there: expected numbers from 0 to 89"):
        sent(tmp_path, "opt_out = [3, 90]\n", options, holes=True)
    assert not (tmp_path / "run").exists()


def test_a_job_that_is_made_again_keeps_the_same_rows_back(tmp_path: Path) -> None:
    options = DataOptions(normalise="none", missing="drop")
    chosen = experiment(tmp_path, f"opt_out = {list(OUT)}\n", holes=True, validation=0.3)
    prepared = prepare(layered("feddata", {"share": 1.0}, chosen, {"epochs": 1}, options))
    write(prepared, OwnFolder(tmp_path / "again"))
    gates = (prepared.job.gates[0], job_in(tmp_path / "again").gates[0])
    assert all(isinstance(gate, PolicyGate) and gate.opted_out for gate in gates)
    assert gates[0].opted_out == gates[1].opted_out  # type: ignore[attr-defined]


def test_a_real_site_counts_the_rows_of_its_file(tmp_path: Path) -> None:
    dataset = load(
        visits(tmp_path, holes=True), options=DataOptions(normalise="none", missing="drop", ignore=("site",)), seed=5
    )
    kept, held = parted(dataset, 0.3, 2)
    assert held is not None
    mine = OwnRows(kept, SITES, 1)
    assert mine.places(1).tolist() == [int(number) for number in kept.train.x[:, 0]]
    assert mine.places(0).tolist() == []


def test_an_unseen_site_takes_its_rows_out_of_the_count(tmp_path: Path) -> None:
    dataset = leave_out(load(visits(tmp_path), options=DataOptions(normalise="none"), seed=5), "site", "south")
    assert dataset.places is not None
    assert dataset.places.tolist() == [int(number) for number in dataset.train.x[:, 0]]


def test_images_with_masks_are_counted_by_name(tmp_path: Path) -> None:
    for site in ("a", "b"):
        for row in range(10):
            for part, value in (("images", 20 * row), ("masks", 255 * (row % 2))):
                (tmp_path / site / part).mkdir(parents=True, exist_ok=True)
                shape = (8, 8, 3) if part == "images" else (8, 8)
                Image.fromarray(np.full(shape, value, np.uint8)).save(tmp_path / site / part / f"{row:02}.png")
    dataset = load(str(tmp_path), options=DataOptions(normalise="none"), seed=3)
    assert dataset.places is not None
    brightness = (dataset.train.x.amax((1, 2, 3)) * 255 / 20).round()
    assert dataset.places.tolist() == brightness.long().tolist()
    assert len(set(dataset.places.tolist())) < 10 <= len(dataset.train)


def test_rows_without_a_file_are_counted_as_the_client_holds_them(tmp_path: Path) -> None:
    """Those it holds back count too: which ones these are, nobody knows beforehand."""
    rows = Examples(torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2)
    data = Dataset("own", rows, rows, 2, groups={"client": np.arange(30) % 3})
    (tmp_path / "policy.toml").write_text("opt_out = [1, 2, 9]\n")
    chosen = Experiment(
        split="client", clients=0, rounds=1, rows_public=True, record="packets", validation=0.3,
        policy=str(tmp_path / "policy.toml"),
    )  # fmt: skip
    fewfed.run(
        "feddata", chosen, Training(epochs=1), values={"share": 1.0}, data=data,
        options=DataOptions(normalise="none"), out=tmp_path / "run",
    )  # fmt: skip
    (setup,) = (one for one in Record.open(tmp_path / "run").exchanges(1) if one.phase == "setup")
    for client, packet in setup.packets.items():
        left = [(number // 2 - client) // 3 for number in _numbers(packet.arrays["x"])]
        assert left
        assert not {1, 2, 9} & set(left)
        assert set(left) <= set(range(10))
