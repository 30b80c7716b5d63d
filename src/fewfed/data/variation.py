"""Pictures that are never twice the same: what is drawn anew each time a row is trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.plan import Random

Flip = Literal["none", "horizontal", "both"]


@dataclass(frozen=True)
class Variation:
    """Crops, flips and rotations of pictures, in this order, of each picture by itself.

    Pixels move and are never mixed: every one takes the value of the nearest place it comes from. What comes in from
    outside is black. Masks move along; outside of them is the background, class 0.
    """

    flip: Flip = "none"
    """Left and right, or also top and bottom, change places with probability one half each."""
    rotate: float = 0.0
    """By an angle of at most so many degrees, either way."""
    crop: int = 0
    """Cut out at a random place of a frame with so many pixels around the picture."""
    black: tuple[float, ...] = ()
    """The value of black in each channel, which is not 0 where pictures are normalised; empty = 0."""

    def on(self, x: Tensor) -> Variation:
        """The same for pictures like these: black is the darkest value that a channel has."""
        if not (self.rotate or self.crop):
            return self
        return replace(self, black=tuple(x.amin((0, 2, 3)).tolist()))

    def __bool__(self) -> bool:
        return self.flip != "none" or self.rotate > 0 or self.crop > 0

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `ConfigError` where rows of this shape are no pictures that can be varied so."""
        asked = ", ".join(f"{name} = {value}" for name, value in self._asked())
        if asked and len(shape) != 3:
            raise ConfigError(f"{asked} needs image data, which rows of shape {shape} are not: leave this option out")
        if self.crop and self.crop >= min(shape[1:]):
            raise ConfigError(
                f"crop = {self.crop} for images of {shape[1]} x {shape[2]} pixels: expected less than a side",
                key="crop",
            )

    def _asked(self) -> list[tuple[str, object]]:
        named = (("flip", self.flip, "none"), ("rotate", self.rotate, 0), ("crop", self.crop, 0))
        return [(name, value) for name, value, without in named if value != without]

    def draw(self, random: Random, rows: int) -> dict[str, Tensor]:
        """What is done to each of some rows."""
        drawn: dict[str, Tensor] = {}
        if self.crop:
            drawn["place"] = random.integers(2 * self.crop + 1, rows, 2) - self.crop
        if self.flip != "none":
            drawn["mirrored"] = random.uniform(rows) < 0.5
        if self.flip == "both":
            drawn["upside_down"] = random.uniform(rows) < 0.5
        if self.rotate:
            drawn["angle"] = (2 * random.uniform(rows).double() - 1) * (self.rotate * math.pi / 180)
        return drawn

    def apply(self, x: Tensor, y: Tensor, drawn: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Rows and labels after what was drawn for them; labels change if they are masks."""
        height, width = x.shape[-2:]
        row, column, inside = _origins(height, width, {name: value.to(x.device) for name, value in drawn.items()})
        pixel = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)
        if tuple(y.shape[1:]) == (height, width):
            y = torch.where(inside, y.flatten(1).gather(1, pixel).view_as(y), torch.zeros_like(y))
        moved = x.flatten(2).gather(2, pixel.unsqueeze(1).expand(-1, x.shape[1], -1)).view_as(x)
        black = torch.tensor(self.black or [0.0] * x.shape[1], dtype=x.dtype, device=x.device)
        return torch.where(inside.unsqueeze(1), moved, black.view(1, -1, 1, 1)), y


def _origins(height: int, width: int, drawn: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """For every pixel of every picture, row and column of where it comes from, and whether that is in the picture."""

    def within(rows: Tensor, columns: Tensor) -> Tensor:
        return (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)

    count, device = len(next(iter(drawn.values()))), next(iter(drawn.values())).device
    rows = torch.arange(height, device=device).view(1, -1, 1).expand(count, height, width)
    columns = torch.arange(width, device=device).view(1, 1, -1).expand(count, height, width)
    if "angle" in drawn:  # About the middle; from here on backwards, from the last change to the first.
        angle = drawn["angle"].view(-1, 1, 1)
        down, right = rows + 0.5 - height / 2, columns + 0.5 - width / 2
        cosine, sine = angle.cos(), angle.sin()
        rows = (sine * right + cosine * down + height / 2).floor().long()
        columns = (cosine * right - sine * down + width / 2).floor().long()
    inside = within(rows, columns)  # What was cropped away does not come back by turning.
    if "mirrored" in drawn:
        columns = torch.where(drawn["mirrored"].view(-1, 1, 1), width - 1 - columns, columns)
    if "upside_down" in drawn:
        rows = torch.where(drawn["upside_down"].view(-1, 1, 1), height - 1 - rows, rows)
    if "place" in drawn:
        rows = rows + drawn["place"][:, 0].view(-1, 1, 1)
        columns = columns + drawn["place"][:, 1].view(-1, 1, 1)
        inside = inside & within(rows, columns)
    return rows, columns, inside


NONE = Variation()
