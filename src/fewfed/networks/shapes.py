"""Which inputs a network takes, as a value that can be asked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fewfed.errors import ConfigError

Shape = tuple[int, ...]
"""The shape of one input, without the batch axis."""

Planes = tuple[int, int, int]
"""Channels, height and width."""


class Accepts(Protocol):
    """A rule about input shapes."""

    def admits(self, shape: Shape) -> bool: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Images:
    """Inputs of (channels, height, width). `square` lists the only sides allowed, where there are such."""

    least_height: int = 1
    least_width: int = 1
    multiple: int = 1
    square: tuple[int, ...] = ()

    def admits(self, shape: Shape) -> bool:
        if len(shape) != 3 or min(shape) < 1:
            return False
        _, height, width = shape
        return (
            height >= self.least_height
            and width >= self.least_width
            and height % self.multiple == 0
            and width % self.multiple == 0
            and (not self.square or (height == width and height in self.square))
        )

    def __str__(self) -> str:
        if self.square:
            return "(channels, height, width) with height x width " + " or ".join(f"{s}x{s}" for s in self.square)
        if self.multiple > 1:
            return f"(channels, height, width) with height and width multiples of {self.multiple}"
        return f"(channels, height, width) with height >= {self.least_height} and width >= {self.least_width}"

    def check(self, network: str, shape: Shape) -> Planes:
        """The three sizes, or a `ConfigError` that says which shapes this network takes."""
        _require(self, network, shape)
        channels, height, width = shape
        return channels, height, width


@dataclass(frozen=True)
class Anything:
    """Inputs of any shape, flattened."""

    def admits(self, shape: Shape) -> bool:
        return bool(shape) and min(shape) >= 1

    def __str__(self) -> str:
        return "any shape of positive sizes"

    def check(self, network: str, shape: Shape) -> Shape:
        """The shape itself, or a `ConfigError`."""
        _require(self, network, shape)
        return shape


def _require(rule: Accepts, network: str, shape: Shape) -> None:
    if not rule.admits(shape):
        raise ConfigError(f"network '{network}' cannot take inputs of shape {tuple(shape)}: expected {rule}")
