"""Sites with tables: what differs between their columns is said by name, at the coordinator and at the site."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from federation import Federation

from fewfed.data.examples import Dataset
from fewfed.data.raw_inputs import InputColumn, RawInputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.deploy.site.site import Site
from fewfed.deploy.status import read_status

NAMES = ("north", "south", "west")


def table(folder: Path, name: str, sexes: tuple[str, ...], columns: str = "age,sex,ill,held") -> Dataset:
    random = np.random.default_rng(len(name))
    rows = [
        f"{random.integers(20, 90)},{sexes[row % len(sexes)]},{('no', 'yes')[row % 2]},{int(row > 20)}"
        for row in range(30)
    ]
    path = folder / f"{name}.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    options = DataOptions(label="ill", test_column="held", normalise="none")
    return load(str(path), options=options, seed=0)


@dataclass
class Tables(Federation):
    """Sites with tables of their own."""

    tables: dict[str, Dataset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        file = self.folder / "serve.toml"
        text = file.read_text().replace("shape = [64]", "shape = [3]")
        file.write_text(text.replace("classes = 10", 'classes = ["no", "yes"]'))

    def site(self, name: str, data: Dataset | None = None) -> Site:
        return super().site(name, self.tables[name] if data is None else data)


@pytest.mark.parametrize(
    ("sexes", "columns", "said"),
    [
        (("f", "m", "x"), "age,sex,ill,held", "in column 'sex' the other sites have no category 'x'"),
        (("f", "f"), "age,sex,ill,held", "in column 'sex' it has no category 'm'"),
        (("f", "w"), "age,sex,ill,held", "in column 'sex' it has no category 'm'"),
        (("0", "1"), "age,sex,ill,held", "its column 'sex' holds numbers, that of the others categories"),
        (("f", "m"), "years,sex,ill,held", "it lacks the column 'age'"),
    ],
)
def test_what_differs_is_named_at_the_coordinator_and_at_the_site(
    tmp_path: Path, sexes: tuple[str, ...], columns: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {name: table(tmp_path, name, ("f", "m")) for name in NAMES[:2]}
    federation = Tables(
        tmp_path, rounds=1, names=NAMES, quorum=2, tables={**tables, "west": table(tmp_path, "west", sexes, columns)}
    )
    with caplog.at_level(logging.WARNING):
        found = Path(federation.run().folder)
    status = read_status(found)["sites"]
    assert status["north"]["joined"]
    assert status["south"]["joined"]
    assert not status["west"]["joined"]
    assert said in status["west"]["declined"]
    assert "--ignore" in status["west"]["declined"]
    told = [record for record in caplog.records if said in record.getMessage()]
    assert {record.name for record in told} == {"fewfed.coordinator", "fewfed.site"}


def test_what_inputs_differ_in() -> None:
    ours = RawInputs("table", (InputColumn("a"), InputColumn("b", ("x", "y"))))
    assert ours.unlike(ours) == ""
    assert "kind 'table'" in ours.unlike(RawInputs("array"))
    assert "another order" in ours.unlike(RawInputs("table", ours.columns[::-1]))
    assert "the other sites lack its column 'b'" in ours.unlike(RawInputs("table", ours.columns[:1]))
