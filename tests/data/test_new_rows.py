"""New rows without labels, laid out as the rows a model was trained on."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fewfed.data.examples import Dataset
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.new_rows import NewRows, inputs_from
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.errors import DataError

OPTIONS = DataOptions(normalise="none", label="outcome", site="ward", test_column="part")
HEADER = ["age", "stage", "outcome", "ward", "part", "smokes"]


def lines(rows: int = 12) -> list[list[str]]:
    return [
        [str(i), ["I", "II", "III"][i % 3], "ill" if i % 2 else "well", f"w{i % 4}", str(i % 3 == 0), str(i % 5 == 0)]
        for i in range(rows)
    ]


def written(path: Path, header: list[str], cells: list[list[str]], separator: str = ",") -> Path:
    path.write_text("\n".join(separator.join(row) for row in [header, *cells]) + "\n")
    return path


@pytest.fixture
def trained(tmp_path: Path) -> Dataset:
    return load(str(written(tmp_path / "train.csv", HEADER, lines())), options=OPTIONS)


def read(path: Path, trained: Dataset, options: DataOptions = OPTIONS, **more: str) -> NewRows:
    assert trained.inputs is not None
    raw = RawInputs.from_json(trained.inputs.as_json())
    return inputs_from(path, raw, trained.shape, options, **more)  # type: ignore[arg-type]


def test_the_training_file_itself_gives_the_inputs_of_training(tmp_path: Path, trained: Dataset) -> None:
    found = read(tmp_path / "train.csv", trained)
    marked = torch.tensor([i % 3 == 0 for i in range(12)])
    assert torch.equal(found.x[~marked], trained.train.x)
    assert torch.equal(found.x[marked], trained.test.x)
    assert found.sites == tuple(f"w{i % 4}" for i in range(12))
    assert found.unused == ("outcome", "part")


@pytest.mark.parametrize("kind", ["csv", "semicolons", "parquet"])
def test_columns_in_any_order_without_labels(tmp_path: Path, trained: Dataset, kind: str) -> None:
    expected = read(tmp_path / "train.csv", trained).x
    order = ["smokes", "stage", "shoe size", "age"]
    random.Random(0).shuffle(order)
    cells = [[dict(zip(HEADER, row, strict=True)).get(name, "9") for name in order] for row in lines()]
    if kind == "parquet":
        columns = dict(zip(order, map(list, zip(*cells, strict=True)), strict=True))
        typed = {**columns, "age": [int(age) for age in columns["age"]]}
        typed["smokes"] = [cell == "True" for cell in columns["smokes"]]
        pq.write_table(pa.table(typed), tmp_path / "new.parquet")
        found = read(tmp_path / "new.parquet", trained)
    else:
        separator = ";" if kind == "semicolons" else ","
        found = read(written(tmp_path / "new.csv", order, cells, separator), trained)
    assert torch.equal(found.x, expected)
    assert (found.unused, found.sites) == (("shoe size",), ())


def test_missing_cells_are_nan_and_no_category(tmp_path: Path, trained: Dataset) -> None:
    found = read(written(tmp_path / "new.csv", ["age", "stage", "smokes"], [["NA", "?", "True"]]), trained)
    assert torch.isnan(found.x[0, 0])
    assert found.x[0, 1:].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("header", "row", "sentence"),
    [
        (["age", "stage"], ["1", "I"], "has no column 'smokes', which the model needs"),
        (["age", "stages", "smokes"], ["1", "I", "True"], "did you mean 'stages'"),
        (["age", "stage", "smokes"], ["1", "IV", "True"], "row 1 holds 'IV', which no training row has: .* I, II, III"),
        (["age", "stage", "smokes"], ["old", "I", "True"], "column 'age', row 1 holds 'old': expected a number"),
        (["age", "age", "stage", "smokes"], ["1", "1", "I", "True"], "two columns 'age'"),
        (["age", "stage", "smokes"], ["inf", "I", "True"], "row 0 holds NaN or infinity"),
    ],
)
def test_rows_that_do_not_fit(
    tmp_path: Path, trained: Dataset, header: list[str], row: list[str], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        read(written(tmp_path / "new.csv", header, [row]), trained)
    assert "\n" not in str(caught.value)


def test_an_unknown_category_may_count_as_none(tmp_path: Path, trained: Dataset) -> None:
    path = written(tmp_path / "new.csv", ["age", "stage", "smokes"], [["1", "IV", "True"]])
    assert read(path, trained, unknown="none").x.tolist() == [[1, 0, 0, 0, 1]]


def test_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=[0, 1] * 3)
    options = DataOptions(normalise="none", image_size=4)
    trained = load(str(tmp_path / "own.npz"), options=options)
    np.savez(tmp_path / "new.npz", x=x, site=[1, 2] * 3, more=[1])
    found = read(tmp_path / "new.npz", trained, options)
    assert sorted(found.x.flatten(1).tolist()) == sorted(
        torch.cat([trained.train.x, trained.test.x]).flatten(1).tolist()
    )
    assert (found.sites, found.unused) == (("1", "2") * 3, ("more",))
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\) but the model was trained on \(1, 4, 4\)"):
        read(tmp_path / "new.npz", trained, dataclasses.replace(options, image_size=0))
    np.savez(tmp_path / "new.npz", z=x)
    with pytest.raises(DataError, match="no array 'x'"):
        read(tmp_path / "new.npz", trained, options)


def test_images_in_class_folders_or_in_none(tmp_path: Path) -> None:
    for folder in ("train/a", "train/b", "new", "new/deeper"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(3):
            shade = number + 10 * len(folder)
            Image.new("RGB", (6, 5), (shade, 0, 9)).save(tmp_path / folder / f"{number}.png")
    options = DataOptions(normalise="none")
    trained = load(str(tmp_path / "train"), options=options)
    assert trained.inputs == RawInputs("images")
    whole = read(tmp_path / "train", trained, options)
    assert whole.names == ("a/0.png", "a/1.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png")
    every = torch.cat([trained.train.x, trained.test.x]).flatten(1)
    assert sorted(whole.x.flatten(1).tolist()) == sorted(every.tolist())
    assert len(read(tmp_path / "new", trained, options).x) == 6
    assert read(tmp_path / "new" / "1.png", trained, options).names == ("1.png",)
    Image.new("L", (7, 7)).save(tmp_path / "new" / "9.png")
    with pytest.raises(DataError, match=r"9\.png is 7 x 7 pixels but the model was trained on 6 x 5.*--size"):
        read(tmp_path / "new", trained, options)
    resized = load(str(tmp_path / "train"), options=DataOptions(normalise="none", image_size=4))
    assert read(tmp_path / "new", resized, DataOptions(normalise="none", image_size=4)).x.shape == (7, 3, 4, 4)


def test_another_kind_of_file(tmp_path: Path, trained: Dataset) -> None:
    np.savez(tmp_path / "new.npz", x=np.ones((2, 5)))
    with pytest.raises(DataError, match=r"new\.npz is arrays but the model was trained on a table"):
        read(tmp_path / "new.npz", trained)
    with pytest.raises(DataError, match="there is no file or folder"):
        read(tmp_path / "none.csv", trained)
    (tmp_path / "new.txt").write_text("a\n1\n")
    with pytest.raises(DataError, match="no known kind"):
        read(tmp_path / "new.txt", trained)
