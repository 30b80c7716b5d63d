"""What may be handed over for prediction, against arithmetic written down once more."""

from __future__ import annotations

import contextlib
import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewfed.data.raw_inputs import RawInputs
from fewfed.errors import DataError
from fewfed.runs.scaling import InputScaling
from fewfed.trained.model import TrainedModel
from trained.trained_support import COLUMNS, untrained

ROWS = [[31.0, "red", 0.5], [math.nan, "blue", 1.5], [64.0, None, math.nan]]
NUMBERS = [[31.0, 0, 1, 0.5], [math.nan, 1, 0, 1.5], [64.0, 0, 0, math.nan]]
TABLE = {"age": [row[0] for row in ROWS], "colour": [row[1] for row in ROWS], "dose": [row[2] for row in ROWS]}


@pytest.fixture(scope="module")
def tabular() -> TrainedModel:
    return untrained("mlp", (4,), 2, inputs=COLUMNS)


def by_hand(model: TrainedModel, numbers: Any) -> np.ndarray:
    """Filled, scaled and pushed through the perceptron in double precision."""
    x = np.array(numbers, dtype=np.float64)
    constants = model.blueprint.scaling.common
    assert constants is not None
    assert constants.fill is not None
    x = np.where(np.isnan(x), constants.fill.double().numpy(), x)
    x = (x - constants.mean.double().numpy()) / constants.std.double().numpy()
    w = {name: leaf.double().numpy() for name, leaf in model.model["params"].items()}
    for stage in ("hidden1", "hidden2"):
        x = np.maximum(x @ w[f"{stage}.linear.weight"].T + w[f"{stage}.linear.bias"], 0)
    logits = x @ w["head.weight"].T + w["head.bias"]
    parts: np.ndarray = np.exp(logits - logits.max(1, keepdims=True))
    return parts / parts.sum(1, keepdims=True)


class Frame:
    """Columns with names, as pandas and polars have them."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self._held = columns

    def __getitem__(self, name: str) -> list[Any]:
        return self._held[name]


def as_file(kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        table = pyarrow.table({name: TABLE[name] for name in ("dose", "colour", "age")})
        pyarrow.parquet.write_table(table, path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
        writer.writerow(["id", "dose", "age", "colour"])
        for row, (age, colour, dose) in enumerate(ROWS):
            writer.writerow([row, "NA" if math.isnan(dose) else dose, "" if math.isnan(age) else age, colour or ""])
    return path


@pytest.mark.parametrize(
    "kind", ["array", "list", "tensor", "double", "dict", "frame", "arrow", "csv", "tsv", "parquet"]
)
def test_the_same_rows_in_every_form(tabular: TrainedModel, kind: str, tmp_path: Path) -> None:
    forms: dict[str, Any] = {
        "array": np.array(NUMBERS, dtype=np.float32),
        "list": NUMBERS,
        "tensor": torch.tensor(NUMBERS),
        "double": torch.tensor(NUMBERS, dtype=torch.float64),
        "dict": {**TABLE, "id": [1, 2, 3]},
        "frame": Frame({"id": [1, 2, 3], **dict(reversed(TABLE.items()))}),
        "arrow": pyarrow.table(TABLE),
    }
    rows = forms[kind] if kind in forms else as_file(kind, tmp_path)
    np.testing.assert_allclose(tabular.predict_proba(rows), by_hand(tabular, NUMBERS), atol=1e-6)
    assert tabular.predict(rows).tolist() == [f"class {number}" for number in by_hand(tabular, NUMBERS).argmax(1)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((2, 5)), r"shape \(2, 5\): expected \(rows, 4\)"),
        (np.zeros(4), r"expected \(rows, 4\)"),
        (np.zeros((0, 4)), "no rows"),
        (np.array([[1, 2, math.inf, 4]]), "row 1 holds infinity"),
        (np.array([["a", "b", "c", "d"]]), "expected a rectangular array of numbers"),
        ([[1, 2], [3]], "are no array|expected a rectangular array"),
        (None, "expected"),
        (5, "expected"),
        (torch.tensor(5.0), r"expected \(rows, 4\)"),
        (b"abcd", "expected"),
        ({"age": 1, "colour": "red", "dose": 1}, "'age' of the table is a int: expected a value for each row"),
        ({"age": [1], "colour": ["red"]}, "no column 'dose'"),
        (
            {"age": [1], "colour": ["green"], "dose": [1]},
            "'green', which no training row has: expected one of blue, red",
        ),
        ({"age": ["old"], "colour": ["red"], "dose": [1]}, "holds 'old': expected a number"),
        ({"age": [1, 2], "colour": ["red"], "dose": [1]}, "differ in length"),
        ("nowhere.csv", "no file or folder nowhere.csv"),
        (Path(__file__), "of no known kind"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tabular: TrainedModel, rows: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        tabular.predict(rows)


def test_missing_values_need_something_to_stand_in() -> None:
    bare = untrained("mlp", (4,), 2, scaling=InputScaling("none"))
    with pytest.raises(DataError, match=r"row 2 holds NaN.*missing = mean"):
        bare.predict([[1, 2, 3, 4], [1, math.nan, 3, 4]])
    assert bare.predict([[1, 2, 3, 4]]).shape == (1,)


def test_classes_without_names_are_numbers() -> None:
    model = untrained("mlp", (4,), 3, class_names=())
    assert model.classes == (0, 1, 2)
    assert model.predict(np.zeros((2, 4))).dtype.kind == "i"


def test_pixels_as_bytes_and_as_images(tmp_path: Path) -> None:
    model = untrained("small-cnn", (3, 16, 16), 3, inputs=RawInputs("images"))
    pixels = np.random.default_rng(0).integers(256, size=(4, 16, 16, 3), dtype=np.uint8)
    floats = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous() / 255
    expected = model.predict_proba(floats)
    np.testing.assert_array_equal(model.predict_proba(pixels), expected)
    np.testing.assert_array_equal(model.predict_proba(torch.from_numpy(pixels)), expected)
    (tmp_path / "below").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / ("below" if number % 2 else "") / f"{number}.png")
    np.testing.assert_array_equal(model.predict_proba(tmp_path), expected[[0, 2, 1, 3]])
    np.testing.assert_allclose(model.predict_proba(tmp_path / "0.png"), expected[:1], atol=1e-7)
    arrays = untrained("small-cnn", (3, 16, 16), 3, inputs=RawInputs("array"))
    np.savez(tmp_path / "rows.npz", x=pixels)
    np.testing.assert_array_equal(arrays.predict_proba(str(tmp_path / "rows.npz")), expected)


def test_grey_images_need_no_axis_for_channels() -> None:
    model = untrained("digits-cnn", (1, 8, 8))
    rows = torch.rand(3, 1, 8, 8)
    np.testing.assert_array_equal(model.predict_proba(rows.squeeze(1)), model.predict_proba(rows))


def test_many_rows_go_through_in_pieces() -> None:
    model = untrained("digits-cnn", (1, 8, 8))
    rows = torch.rand(1203, 1, 8, 8)
    whole = torch.softmax(model(rows).detach().double(), 1).numpy()
    np.testing.assert_allclose(model.predict_proba(rows), whole, atol=1e-6)


def test_segmentation_gives_masks() -> None:
    model = untrained("unet", (1, 16, 32), 3)
    rows = torch.rand(2, 1, 16, 32)
    assert model.predict_proba(rows).shape == (2, 3, 16, 32)
    masks = model.predict(rows)
    assert masks.shape == (2, 16, 32)
    assert set(np.unique(masks)) <= {0, 1, 2}


def test_predicting_leaves_the_model_as_it_was() -> None:
    model = untrained("digits-cnn", (1, 8, 8)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.predict(torch.rand(20, 1, 8, 8))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


CELLS = st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=3), st.booleans())
ONE_COLUMN = untrained("mlp", (1,), 2, inputs=RawInputs("table", COLUMNS.columns[:1]))


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_any_cells_are_taken_or_refused(cells: list[Any]) -> None:
    with contextlib.suppress(DataError):
        assert ONE_COLUMN.predict_proba({"age": cells}).shape == (len(cells), 2)
