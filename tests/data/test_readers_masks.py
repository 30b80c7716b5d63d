"""Folders of images and masks, made here and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import available, load
from fewfed.errors import ConfigError, DataError
from fewfed.runs.scaling import apply_known

PLAIN = DataOptions(normalise="none")


def picture(path: Path, value: int, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path)


def mask(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def corner(size: int, side: int = 16) -> np.ndarray:
    """Ones in a square at the top left."""
    pixels = np.zeros((side, side), np.uint8)
    pixels[:size, :size] = 1
    return pixels


def sites(folder: Path, images: int = 10, suffix: str = "", high: int = 255) -> Path:
    """Two hospitals; the brightness of image k is 10k (north) or 10k + 5, the side of its mask k."""
    for number, name in enumerate(("north", "south")):
        for k in range(images):
            picture(folder / name / "images" / f"case{k:02}.png", 10 * k + 5 * number)
            mask(folder / name / "masks" / f"case{k:02}{suffix}.png", high * corner(k))
    return folder


@pytest.mark.parametrize(("suffix", "high"), [("", 255), ("_mask", 255), ("", 1)])
def test_every_image_gets_its_own_mask_and_every_site_is_a_domain(tmp_path: Path, suffix: str, high: int) -> None:
    data = load(str(sites(tmp_path / "eyes", suffix=suffix, high=high)), options=PLAIN)
    assert data.task == "segmentation"
    assert (data.name, data.classes, data.shape) == ("eyes", 2, (3, 16, 16))
    assert data.group_names["domain"] == ("north", "south")
    assert (len(data.train), len(data.test)) == (16, 4)
    for part, groups in ((data.train, data.groups), (data.test, data.test_groups)):
        for x, y, site in zip(part.x, part.y, groups["domain"], strict=True):
            brightness = round(float(x[0, 0, 0]) * 255)
            assert brightness % 10 == 5 * site
            assert int(y.sum()) == (brightness // 10) ** 2, "the mask belongs to the image"
            assert np.array_equal(y.numpy(), corner(brightness // 10))
    assert np.bincount(data.test_groups["domain"]).tolist() == [2, 2]


def test_hold_outs_depend_on_the_seed_and_the_fraction(tmp_path: Path) -> None:
    folder = str(sites(tmp_path / "eyes"))
    first, again, other = (load(folder, options=PLAIN, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)
    assert len(load(folder, options=DataOptions(test_fraction=0.5)).test) == 10


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("training", "testing")])
def test_a_site_may_bring_its_own_test_part(tmp_path: Path, train: str, test: str) -> None:
    for part, value, count in ((train, 50, 3), (test, 100, 2)):
        for k in range(count):
            picture(tmp_path / "north" / part / "images" / f"{k}.png", value)
            mask(tmp_path / "north" / part / "masks" / f"{k}.png", corner(4))
    data = load(str(tmp_path), options=PLAIN)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert torch.allclose(data.train.x, torch.tensor(50 / 255))
    assert torch.allclose(data.test.x, torch.tensor(100 / 255))


def test_one_site_needs_no_folder_of_its_own(tmp_path: Path) -> None:
    data = load(str(sites(tmp_path) / "north"), options=PLAIN)
    assert data.group_names["domain"] == ("north",)
    assert len(data.train) + len(data.test) == 10


def test_masks_are_resized_without_new_classes_and_stay_on_their_image(tmp_path: Path) -> None:
    for k in range(4):
        picture(tmp_path / "a" / "images" / f"{k}.png", 90, side=32)
        mask(tmp_path / "a" / "masks" / f"{k}.png", 255 * corner(16, side=32))
    data = load(str(tmp_path), options=DataOptions(image_size=16, normalise="none"))
    assert data.shape == (3, 16, 16)
    assert all(np.array_equal(y, corner(8)) for y in data.train.y.numpy())


def test_inputs_are_scaled_with_the_training_part(tmp_path: Path) -> None:
    data = apply_known(load(str(sites(tmp_path))), DataOptions())
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(data.train.x.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_several_classes_are_the_values_of_the_mask(tmp_path: Path) -> None:
    levels = np.repeat(np.arange(16) // 6, 16).reshape(16, 16)
    for k in range(3):
        picture(tmp_path / "a" / "images" / f"{k}.png", 90)
        mask(tmp_path / "a" / "masks" / f"{k}.png", levels)
    data = load(str(tmp_path), options=DataOptions(classes=3))
    assert data.classes == 3
    assert np.array_equal(data.train.y[0].numpy(), levels)
    with pytest.raises(DataError, match="expected 0 and one other for the foreground"):
        load(str(tmp_path))
    mask(tmp_path / "a" / "masks" / "1.png", 7 * corner(3))
    with pytest.raises(DataError, match="has the value 7: expected classes 0 to 2"):
        load(str(tmp_path), options=DataOptions(classes=3))


def test_palette_masks_are_read_by_number_not_by_colour(tmp_path: Path) -> None:
    for k in range(2):
        picture(tmp_path / "a" / "images" / f"{k}.png", 90)
        coloured = Image.fromarray(2 * corner(5), mode="L").convert("P")
        coloured.putpalette([200, 30, 30, 0, 0, 0, 90, 200, 10] + [0] * (3 * 253))
        (tmp_path / "a" / "masks").mkdir(exist_ok=True)
        coloured.putdata(list((2 * corner(5)).flatten()))
        coloured.save(tmp_path / "a" / "masks" / f"{k}.png")
    assert np.array_equal(load(str(tmp_path), options=PLAIN).train.y[0].numpy(), corner(5))


def test_an_image_without_a_mask_and_a_mask_without_an_image_are_named(tmp_path: Path) -> None:
    folder = sites(tmp_path)
    lost = folder / "north" / "masks" / "case03.png"
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(DataError, match=r"case03\.png has no mask: expected .*case03\.png or case03_mask\.png"):
        load(str(folder))
    lost.write_bytes(content)
    (folder / "south" / "images" / "case04.png").unlink()
    with pytest.raises(DataError, match=r"masks.case04\.png has no image"):
        load(str(folder))


def test_two_masks_for_one_image_are_refused(tmp_path: Path) -> None:
    folder = sites(tmp_path)
    mask(folder / "north" / "masks" / "case03_mask.png", corner(3))
    with pytest.raises(DataError, match="are masks of the same image"):
        load(str(folder))


def test_a_mask_of_another_size_or_damaged_is_named(tmp_path: Path) -> None:
    folder = sites(tmp_path)
    mask(folder / "north" / "masks" / "case03.png", corner(3, side=8))
    with pytest.raises(DataError, match=r"case03\.png is 8 x 8 but its image is 16 x 16: expected the same size"):
        load(str(folder))
    (folder / "north" / "masks" / "case03.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"case03\.png cannot be read as an image"):
        load(str(folder))


def test_an_empty_site_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "images").mkdir(parents=True)
    (tmp_path / "a" / "masks").mkdir()
    with pytest.raises(DataError, match="has no images: expected at least one, with its mask in masks"):
        load(str(tmp_path))


def test_augmenting_images_without_their_masks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"would move the images of .* but not their masks"):
        load(str(sites(tmp_path)), options=DataOptions(augment="static"))


def retina(folder: Path) -> Path:
    for part, names in (("training", range(21, 25)), ("testing", range(1, 4))):
        for k in names:
            picture(folder / "drive" / part / "images" / f"{k:02}.png", k)
            mask(folder / "drive" / part / "vessels" / f"{k:02}.png", 255 * corner(5))
    for child in range(1, 15):
        for eye in "LR":
            picture(folder / "chase" / "images" / f"Image_{child:02}{eye}.png", 100 + child)
            mask(folder / "chase" / "vessels" / f"Image_{child:02}{eye}.png", 255 * corner(5))
    return folder


def test_retina_keeps_drives_parts_and_no_child_of_chase_is_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retina(tmp_path / "retina_vessels")
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    assert next(item for item in available() if item.name == "retina").present
    data = load("retina", options=PLAIN)
    assert data.shape == (3, 128, 128), "the documented default size"
    assert data.group_names["domain"] == ("drive", "chase")
    assert np.bincount(data.groups["domain"]).tolist() == [4, 20]
    assert np.bincount(data.test_groups["domain"]).tolist() == [3, 8]
    shown = [{round(float(x[0, 0, 0]) * 255) for x in part.x} for part in (data.train, data.test)]
    assert shown[0].isdisjoint(shown[1])
    assert load("retina", options=DataOptions(image_size=32)).train.y.shape == (24, 32, 32)
    assert data.inputs == RawInputs("images")  # A trained model then takes new photographs.


def test_retina_without_a_hospital_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = retina(tmp_path / "retina_vessels")
    (folder / "chase").rename(folder / "elsewhere")
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    with pytest.raises(DataError, match="chase holds no images and vessels"):
        load("retina")


def test_class_folders_are_still_classes(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for k in range(5):
            picture(tmp_path / label / f"{k}.png", 50)
    assert load(str(tmp_path)).task == "classification"
