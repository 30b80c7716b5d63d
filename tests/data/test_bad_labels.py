"""Labels that are no classes, and other odd fields: one sentence from every reader, never another class."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fewfed.data.examples import Dataset, Examples, checked
from fewfed.data.leave_out import leave_out
from fewfed.data.readers.har import SIGNALS
from fewfed.data.readers.holdout import hold_out
from fewfed.data.sources import DataOptions, load
from fewfed.errors import ConfigError, DataError

RAW = DataOptions(normalise="none")


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    return tmp_path


def refused(name: str | Path, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        load(str(name), options=RAW)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def write_cifar(root: Path, **entries: Any) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        content = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1, 2]}
        if name == "data_batch_2":
            content |= {key.encode(): value for key, value in entries.items()}
        (folder / name).write_bytes(pickle.dumps(content, 2))


ENDLESS: list[Any] = []
for _ in range(60):
    ENDLESS = [ENDLESS, ENDLESS]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 0.5, 1], r"data_batch_2 row 1 has label 0\.5: expected 0 to 9, a whole number"),
        ([0, float("nan"), 1], "row 1 has label nan"),
        ([0, float("inf"), 1], "row 1 has label inf"),
        ([0, 10, 1], "row 1 has label 10: expected 0 to 9"),
        ([0, -1, 1], "row 1 has label -1"),
        ([0, 2**70, 1], "row 1 has label 1180591620717411303424"),
        ([0, True, 1], "row 1 has a label of type bool"),
        ([0, None, 1], "row 1 has a label of type NoneType"),
        ([0, b"1", 1], "row 1 has a label of type bytes"),
        ([0, "z" * 10_000, 1], "row 1 has a label of type str"),
        ([[0], [1], [2]], "row 0 has a label of type list"),
        (ENDLESS[:1] * 3, "row 0 has a label of type list"),
        ("abc", "no list of labels"),
        (b"abc", "no list of labels"),
        (None, "no list of labels"),
        (5, "no list of labels"),
        ({}, "no list of labels"),
        (np.zeros((3, 1)), "no list of labels"),
        (np.array(5), "no list of labels"),
        (np.array([0, 0.5, 1]), "row 1 has label 0.5"),
        (np.array([0, 2**64 - 1, 1], np.uint64), "row 1 has label 18446744073709551615"),
        ([0, 1], "3 images but 2 labels"),
        ([], "3 images but 0 labels"),
    ],
    ids=range(23),
)
def test_labels_of_cifar(tmp_path: Path, labels: Any, sentence: str) -> None:
    write_cifar(tmp_path, labels=labels)
    refused("cifar10", sentence)


@pytest.mark.parametrize("labels", [(2, 1, 0), np.array([2, 1, 0]), np.array([2.0, 1, 0]), [2.0, 1, 0]], ids=range(4))
def test_labels_of_cifar_that_will_do(tmp_path: Path, labels: Any) -> None:
    write_cifar(tmp_path, labels=labels)
    assert load("cifar10", options=RAW).train.y[3:6].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "data",
    [None, b"abc", [1, 2], np.zeros((3, 3072)), np.zeros((3, 3071), np.uint8), np.zeros(3072, np.uint8)],
    ids=range(6),
)
def test_pixels_of_cifar_that_are_none(tmp_path: Path, data: Any) -> None:
    write_cifar(tmp_path, data=data)
    refused("cifar10", "data_batch_2 does not hold images")


@pytest.mark.parametrize("names", [None, "abc", 5, [1, 2], [b"\xff"], ["\ud800"], [None], {}], ids=range(8))
def test_names_of_cifar_that_are_none(tmp_path: Path, names: Any) -> None:
    write_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, 4))
    refused("cifar10", r"batches\.meta has")


BAD: list[tuple[Any, str]] = [
    (np.array([0, 0.5, 1, 0]), r"label 0\.5"),
    (np.array([0, np.nan, 1, 0]), "label nan"),
    (np.array([0, np.inf, 1, 0]), "label inf"),
    (np.array([0, 1e300, 1, 0]), r"label 1e\+300"),
]
FOREIGN = [
    (np.array([0, -1, 1, 0]), "label -1"),
    (np.array([0, 2**63, 1, 0], np.uint64), "label 9223372036854775808"),
    (np.array([0, 2**62, 1, 0]), "label 4611686018427387904"),
]
"""Classes of a user's own, whatever they are called, but not those of a data set whose classes are known."""


@pytest.mark.parametrize(("labels", "sentence"), BAD, ids=range(len(BAD)))
def test_labels_of_files(tmp_path: Path, labels: np.ndarray, sentence: str) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=labels)
    refused(tmp_path / "own.npz", sentence)
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 0, 1], x_test=np.eye(4), y_test=labels)
    refused(tmp_path / "own.npz", sentence)
    pq.write_table(pa.table({"a": np.arange(4.0), "label": labels}), tmp_path / "own.parquet")
    refused(tmp_path / "own.parquet", f"{sentence}|one missing cell")


@pytest.mark.parametrize(("labels", "sentence"), BAD + FOREIGN, ids=range(len(BAD + FOREIGN)))
def test_labels_of_a_data_set_whose_classes_are_known(tmp_path: Path, labels: np.ndarray, sentence: str) -> None:
    images = np.zeros((4, 28, 28), np.uint8)
    arrays = {"train_images": images, "test_images": images, "test_labels": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "pneumoniamnist.npz", train_labels=labels, **arrays)
    refused("pneumonia", sentence)


@pytest.mark.parametrize("cell", ["99999999999999999999", "-1", "9" * 4000, "7", "1e3", "007", "0x1", "²"])
def test_labels_of_csv_are_classes_whatever_they_are(tmp_path: Path, cell: str) -> None:
    (tmp_path / "own.csv").write_text(f"a,label\n1,0\n2,{cell}\n3,0\n4,0\n")
    written = {"1e3": "1000"}.get(cell, cell)
    assert set(load(str(tmp_path / "own.csv")).class_names) == {"0", written}


def test_grades_are_classes_and_measurements_are_not(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,label\n" + "1,0.5\n2,1\n" * 4)
    assert load(str(tmp_path / "own.csv")).class_names == ("0.5", "1")
    drawn = np.random.default_rng(0).normal(size=50)
    (tmp_path / "own.csv").write_text("a,label\n" + "".join(f"1,{value:.3f}\n" for value in drawn))
    refused(
        tmp_path / "own.csv", r"one of \d+ different numbers in 50 rows: expected classes and not something measured"
    )


def test_bytes_as_labels_and_names(tmp_path: Path) -> None:
    good = np.array([b"one", "zwö".encode(), b"one", "zwö".encode()])
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=good, client=good, x_test=np.eye(4), y_test=good)
    dataset = load(str(tmp_path / "own.npz"))
    assert dataset.class_names == ("one", "zwö")
    assert dataset.group_names["client"] == ("one", "zwö")
    bad = np.array([b"one", b"\xff\xfe", b"one", b"two"])
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=bad)
    refused(tmp_path / "own.npz", "labels hold bytes that are no text")
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 0, 1], client=bad, x_test=np.eye(4), y_test=[0, 1, 0, 1])
    refused(tmp_path / "own.npz", "'client' ids hold bytes that are no text")
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=good, x_test=np.eye(4), y_test=np.ones(4, complex))
    refused(tmp_path / "own.npz", "labels are of type complex128")
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 0, 1], client=np.ones(4, complex))
    refused(tmp_path / "own.npz", "'client' ids are of type complex128")


@pytest.mark.parametrize("shape", [(6, 0), (6, 1, 0, 5), (6, 1, 5, 0), (6, 0, 5), (6, 0, 5, 5)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_inputs_without_width_or_height(tmp_path: Path, shape: tuple[int, ...], kind: type[np.generic]) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros(shape, kind), y=np.arange(6) % 2)
    refused(tmp_path / "own.npz", "expected at least one number in every row")
    with pytest.raises(DataError, match="at least one number"):
        load(str(tmp_path / "own.npz"), options=DataOptions(image_size=8))


def test_labels_and_people_of_har(tmp_path: Path) -> None:
    root = tmp_path / "UCI HAR Dataset"
    for part in ("train", "test"):
        (root / part / "Inertial Signals").mkdir(parents=True)
        for signal in SIGNALS:
            np.savetxt(root / part / "Inertial Signals" / f"{signal}_{part}.txt", np.zeros((3, 128)))
        (root / part / f"y_{part}.txt").write_text("1\n2\n3\n")
        (root / part / f"subject_{part}.txt").write_text("1\n1\n2\n")
    assert load("har", options=RAW).train.y.tolist() == [0, 1, 2]
    for text, sentence in (
        ("1\n1.5\n3\n", r"y_train\.txt, row 1 has label 1\.5"),
        ("1\nnan\n3\n", "label nan"),
        ("1\n1e300\n3\n", r"label 1e\+300"),
        ("1\n0\n3\n", "label -1: expected 0 to 5"),
        ("\n\n", "numbers a line|rows"),
        ("1\n\udcff\n3\n", "not a table of numbers"),
    ):
        (root / "train" / "y_train.txt").write_text(text, errors="surrogateescape")
        refused("har", sentence)
    (root / "train" / "y_train.txt").write_text("1\n2\n3\n")
    (root / "train" / "subject_train.txt").write_text("1\n1.5\n3\n")
    refused("har", r"subject_train\.txt, row 1 has label 1\.5")


@pytest.mark.parametrize(
    "row",
    ["a.wav,1,1,0.5", "a.wav,1,1,10", "a.wav,1,1,-1", "a.wav,99999999999999999999,1,1", "a.wav,1,5000,1", "a.wav,1"],
)
def test_clips_of_urbansound(tmp_path: Path, row: str) -> None:
    (tmp_path / "UrbanSound8K" / "metadata").mkdir(parents=True)
    (tmp_path / "UrbanSound8K" / "metadata" / "UrbanSound8K.csv").write_text(
        f"slice_file_name,fsID,fold,classID\n{row}\n"
    )
    refused("urbansound8k", r"UrbanSound8K\.csv cannot be read")


def part(x: torch.Tensor, y: torch.Tensor) -> Dataset:
    return Dataset("own", Examples(x, y), Examples(torch.ones(2, 3), torch.tensor([0, 1])), 2)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (torch.ones(2), torch.tensor([0, 1]), "inputs have shape"),
        (torch.tensor(1.0), torch.tensor([0, 1]), "inputs have shape"),
        (torch.ones(2, 0), torch.tensor([0, 1]), "inputs have shape"),
        (torch.ones(2, 3), torch.tensor([0.0, 0.5]), "labels are torch.float32"),
        (torch.ones(2, 3), torch.tensor([True, False]), "labels are torch.bool"),
        (torch.ones(2, 3), torch.tensor(1), "labels are torch.int64 of shape"),
        (torch.ones(2, 3), torch.tensor([0, 2]), "row 1 has label 2"),
        (torch.ones(0, 3), torch.tensor([]), "no train rows"),
    ],
    ids=range(8),
)
def test_data_made_in_python(x: torch.Tensor, y: torch.Tensor, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        checked(part(x, y))


def test_groups_left_out_are_named_by_plain_digits() -> None:
    data = Dataset(
        "own",
        Examples(torch.ones(4, 3), torch.tensor([0, 1, 0, 1])),
        Examples(torch.ones(2, 3), torch.tensor([0, 1])),
        2,
        groups={"subject": np.array([0, 0, 1, 1])},
        group_names={"subject": ("a", "b")},
    )
    assert len(leave_out(data, "subject", "1").train) == 2
    for wanted in ("²", "9" * 5000, "-1", "٣", ""):
        with pytest.raises(ConfigError, match="leave_out"):
            leave_out(data, "subject", wanted)


def test_a_class_for_every_row_is_held_out_quickly() -> None:
    labels = np.random.default_rng(0).permutation(200_000)
    kept, held = hold_out(labels, 0.2, 0)
    assert (len(kept), len(held)) == (200_000, 0)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(
    "labels", [np.arange(100) % 7, np.array([3, 1, 1, 9, 3, 3, 1]), np.zeros(5, int)], ids=range(3)
)
def test_rows_held_out_are_those_of_a_search_by_class(labels: np.ndarray, seed: int) -> None:
    """As the rows of each class would be found one class after the other."""
    _, held = hold_out(labels, 0.3, seed)
    rng = np.random.default_rng(seed)
    expected: list[int] = []
    for value in np.unique(labels):
        order = rng.permutation(np.flatnonzero(labels == value)).tolist()
        expected += order[: int(np.isin(np.flatnonzero(labels == value), held).sum())]
    assert sorted(expected) == held.tolist()


@pytest.mark.parametrize("make", [lambda: 2**63, lambda: -1, lambda: 2**200])
def test_seeds_that_no_generator_takes(make: Callable[[], int]) -> None:
    with pytest.raises(ConfigError, match="seed = "):
        load("digits", seed=make())
