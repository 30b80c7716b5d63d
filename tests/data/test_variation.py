"""Crops, flips and rotations against Pillow's and NumPy's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.data.variation import Variation
from fewfed.errors import ConfigError
from fewfed.plan import Random
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import prepare

ALL = Variation("both", 30.0, 3)


def pictures(count: int = 40, height: int = 24, width: int = 17) -> Tensor:
    """Two channels of whole numbers from 1 to 255, so that 0 can only come from outside."""
    return torch.from_numpy(np.random.default_rng(0).integers(1, 256, (count, 2, height, width))).float()


def by_hand(picture: np.ndarray, drawn: dict[str, Tensor], number: int, pad: int) -> np.ndarray:
    """One channel: cropped and flipped by NumPy, turned by Pillow."""
    height, width = picture.shape
    if "place" in drawn:
        top, left = (pad + drawn["place"][number]).tolist()
        picture = np.pad(picture, pad)[top : top + height, left : left + width]
    if "mirrored" in drawn and drawn["mirrored"][number]:
        picture = picture[:, ::-1]
    if "upside_down" in drawn and drawn["upside_down"][number]:
        picture = picture[::-1]
    if "angle" in drawn:
        turned = Image.fromarray(np.ascontiguousarray(picture.astype(np.uint8)))
        picture = np.asarray(turned.rotate(math.degrees(drawn["angle"][number]), Image.Resampling.NEAREST))
    return picture


@pytest.mark.parametrize(
    "variation", [Variation("horizontal"), Variation("both"), Variation(rotate=30), Variation(crop=4), ALL]
)
def test_pictures_are_those_of_pillow_and_numpy(variation: Variation) -> None:
    x, y = pictures(), torch.arange(40)
    drawn = variation.draw(Random(1, "rows"), 40)
    found, labels = variation.apply(x, y, drawn)
    expected = np.stack(
        [[by_hand(channel.numpy(), drawn, number, variation.crop) for channel in one] for number, one in enumerate(x)]
    )
    # Pillow turns in fixed-point numbers: of 10 000 pixels one or two may come from the next place.
    assert (found.numpy() != expected).mean() < (1e-3 if variation.rotate else 1e-12)
    assert torch.equal(labels, y)
    assert (found != x).double().mean() > 0.3


def test_black_comes_in_from_outside_also_where_pictures_are_normalised() -> None:
    x = pictures()
    x[0, :, 0, 0] = 0
    mean, deviation = torch.tensor([100.0, 50.0]).view(2, 1, 1), torch.tensor([60.0, 30.0]).view(2, 1, 1)
    scaled = (x - mean) / deviation
    drawn, y = ALL.draw(Random(5), len(x)), torch.zeros(len(x))
    before, after = ALL.on(x).apply(x, y, drawn)[0], ALL.on(scaled).apply(scaled, y, drawn)[0]
    assert torch.equal(after, (before - mean) / deviation)


def test_masks_move_with_their_pictures() -> None:
    x = pictures()
    found, masks = ALL.apply(x, x[:, 1].long(), ALL.draw(Random(2), len(x)))
    assert torch.equal(masks, found[:, 1].long())
    assert masks.dtype == torch.long


def test_what_is_drawn_has_the_stated_distribution() -> None:
    drawn = Variation("both", 30.0, 2).draw(Random(3), 20_000)
    for name in ("mirrored", "upside_down"):
        assert abs(float(drawn[name].double().mean()) - 0.5) < 4 * 0.5 / math.sqrt(20_000)
    degrees = torch.rad2deg(drawn["angle"])
    assert float(degrees.abs().max()) <= 30
    assert float(degrees.std()) == pytest.approx(60 / math.sqrt(12), rel=0.02)
    places = torch.bincount(((drawn["place"] + 2) * torch.tensor([5, 1])).sum(1), minlength=25)
    assert len(places) == 25
    assert float((places / 20_000 - 1 / 25).abs().max()) < 4 * math.sqrt(1 / 25 / 20_000)


def test_nothing_asked_is_nothing_drawn() -> None:
    assert not Variation()
    assert Variation().draw(Random(0), 3) == {}
    Variation().check((128,))


@pytest.mark.parametrize("variation", [Variation("horizontal"), Variation(rotate=5), Variation(crop=1)])
@pytest.mark.parametrize("shape", [(128,), (1, 128), (1, 4, 4, 4)])
def test_rows_that_are_no_images_are_refused(variation: Variation, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"needs image data, which rows of shape \(.*\) are not: leave this"):
        variation.check(shape)


def test_a_frame_wider_than_the_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="crop = 8 for images of 8 x 9 pixels: expected less than a side"):
        Variation(crop=8).check((1, 8, 9))


@pytest.mark.parametrize("value", [{"flip": "horizontal"}, {"rotate": 10.0}, {"crop": 1}])
def test_data_that_is_no_images_says_so(tmp_path: Path, value: dict[str, Any]) -> None:
    np.savez(tmp_path / "table.npz", x=np.random.default_rng(0).random((20, 5)), y=np.arange(20) % 2)
    name = next(iter(value))
    with pytest.raises(ConfigError, match=f"{name} = .* needs image data, which 'table' is not"):
        load(str(tmp_path / "table.npz"), options=DataOptions(**value))
    rows = Examples(torch.zeros(8, 5), torch.arange(8) % 2)
    own = Dataset("mine", rows, rows, 2)
    with pytest.raises(ConfigError, match=rf"{name} = .* needs image data, which rows of shape \(5,\) are not"):
        prepare(resolve("fedavg", {"network": "mlp", "split": "iid", "clients": 2, **value}), data=own)
