"""Finding data by name or path, the search path, and the sentences for what is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fewfed.data.readers.holdout import hold_out
from fewfed.data.scaling import Scaling
from fewfed.data.sources import DataOptions, available, load, names, search_path
from fewfed.data.transforms import crop_and_flip, resized
from fewfed.errors import ConfigError, DataError
from fewfed.runs.scaling import apply_known


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path / "data"))
    return tmp_path


def test_search_path_lists_folders_in_order_then_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWFED_DATA", os.pathsep.join(["/first", "", "/second"]))
    assert search_path() == [Path("/first"), Path("/second"), tmp_path / "cache" / "fewfed"]


def test_cache_folder_without_xdg_is_under_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("FEWFED_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert search_path() == [tmp_path / ".cache" / "fewfed"]


def test_available_names_every_set_and_only_digits_is_there_on_an_empty_machine() -> None:
    present = {item.name: item.present for item in available()}
    assert list(present) == names()
    assert [name for name, there in present.items() if there] == ["digits"]
    assert all(item.what and item.obtain for item in available())


def test_available_says_where_a_set_was_found(tmp_path: Path) -> None:
    (tmp_path / "data" / "MNIST" / "raw").mkdir(parents=True)
    assert not next(item for item in available() if item.name == "mnist").present, "an empty folder is not the data"
    (tmp_path / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").touch()
    assert next(item for item in available() if item.name == "mnist").where == tmp_path / "data" / "MNIST" / "raw"


def test_missing_set_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar10")
    assert str(tmp_path / "data" / "cifar-10-batches-py") in str(caught.value)
    assert "fewfed data get cifar10" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("cifar01", "did you mean 'cifar10'"),
        ("mnits", "did you mean 'mnist'"),
        ("nowhere/data.npz", "no file or folder"),
        ("absent.csv", "no file or folder"),
    ],
)
def test_unknown_names_and_paths(given: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(given)


def test_a_file_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"\.npz, \.csv, \.tsv, \.parquet"):
        load(str(tmp_path / "notes.txt"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="one sub-folder a class"):
        load(str(tmp_path / "void"))


def test_importing_the_sources_loads_no_optional_package() -> None:
    code = (
        "import sys, fewfed.data.sources, fewfed.data.download\n"
        "heavy = {'sklearn', 'PIL', 'soundfile', 'scipy', 'pyarrow', 'matplotlib'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digits_are_scikit_learns_and_share_one_split_whatever_the_seed() -> None:
    from sklearn.datasets import load_digits

    plain = load("digits", options=DataOptions(normalise="none"))
    again = load("digits", options=DataOptions(normalise="none"), seed=5)
    assert torch.equal(plain.test.x, again.test.x)
    assert (len(plain.train), len(plain.test)) == (1437, 360)
    rows = torch.cat([plain.train.x, plain.test.x]).flatten(1).mul(16).round().int()
    reference = load_digits().data.astype(np.int32)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, reference.tolist()))
    per_class = torch.bincount(torch.cat([plain.train.y, plain.test.y])).numpy()
    assert np.abs(torch.bincount(plain.test.y).numpy() - 0.2 * per_class).max() <= 1


def test_normalised_training_images_have_mean_0_and_deviation_1_and_test_images_share_the_scale() -> None:
    plain = load("digits", options=DataOptions(normalise="none"))
    scaled = apply_known(load("digits"), DataOptions())
    assert float(scaled.train.x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.train.x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    mean, std = plain.train.x.mean(), plain.train.x.std(correction=0)
    torch.testing.assert_close(scaled.test.x, (plain.test.x - mean) / std, atol=1e-5, rtol=1e-4)


def test_static_augmentation_is_frozen_by_the_seed_and_leaves_the_test_part_alone() -> None:
    plain = load("digits")
    static = DataOptions(augment="static")
    one, same, other = (
        load("digits", options=static),
        load("digits", options=static),
        load("digits", options=static, seed=1),
    )
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    assert not torch.equal(one.train.x, plain.train.x)
    assert torch.equal(one.test.x, plain.test.x)
    accident = load("digits", options=DataOptions(augment="static", augment_test=True))
    assert not torch.equal(accident.test.x, plain.test.x)


def test_crop_and_flip_gives_every_image_one_of_its_162_views_each_about_equally_often() -> None:
    image = torch.arange(1.0, 13.0).reshape(1, 1, 3, 4)
    out = crop_and_flip(image.expand(16200, 1, 3, 4), np.random.default_rng(0))
    framed = np.pad(image[0, 0].numpy(), 4)
    views = {}
    for top in range(9):
        for left in range(9):
            cut = framed[top : top + 3, left : left + 4]
            for flipped in (cut, cut[:, ::-1]):
                views[flipped.tobytes()] = views.get(flipped.tobytes(), 0) + 1
    seen = [row.numpy().tobytes() for row in out[:, 0]]
    assert set(seen) == set(views)
    untouched = image[0, 0].numpy().tobytes()
    assert seen.count(untouched) == pytest.approx(100, abs=50)


def test_resizing_a_constant_image_keeps_it_and_halving_averages() -> None:
    assert torch.allclose(resized(torch.full((2, 3, 8, 8), 0.25), 5), torch.tensor(0.25))
    board = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(4, 4)[None, None]
    assert resized(board, 4).shape == (1, 1, 4, 4)
    assert float(resized(board, 4).mean()) == pytest.approx(0.5, abs=1e-6)


def test_scaling_leaves_a_constant_column_finite() -> None:
    x = torch.tensor([[0.1, 1.0], [0.1, 3.0]])
    torch.testing.assert_close(Scaling.of(x).apply(x), torch.tensor([[0.0, -1.0], [0.0, 1.0]]))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_hold_out_is_stratified_disjoint_and_complete(fraction: float) -> None:
    strata = np.repeat([0, 1, 2, 3], [50, 31, 7, 1])
    kept, held = hold_out(strata, fraction, seed=3)
    assert sorted([*kept, *held]) == list(range(len(strata)))
    assert len(held) == int(np.ceil(fraction * len(strata)))
    share = np.bincount(strata[held], minlength=4) - fraction * np.bincount(strata)
    assert np.abs(share).max() <= 1
    assert 3 not in strata[held], "a class with one row keeps it for training"
    assert not np.array_equal(held, hold_out(strata, fraction, seed=4)[1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (DataOptions(audio_augment=True), "audio_augment = true needs audio"),
        (DataOptions(group_split=True), "group_split = true needs audio"),
        (DataOptions(augment_test=True), "augment_test = true has nothing to do"),
        (DataOptions(test_fraction=1.5), "test_fraction = 1.5"),
        (DataOptions(channels=10), "channels = 10"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: DataOptions, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load("digits", options=options)
