"""Noise that bounds what a phase tells about one row, declared by whoever adds it.

The ledger (`fewfed.privacy.ledger`) composes these declarations over a run, whatever method or wrapper they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fewfed.errors import ConfigError

Each = Literal["step", "row", "round"]

_BITS = 32


@dataclass(frozen=True)
class Mechanism:
    """Gaussian noise in one phase. What it does not name is sent without any bound."""

    phase: str
    uploads: frozenset[str]
    """What is protected by it: names of the phase's uploads."""
    noise: float
    """The noise multiplier: the standard deviation of the noise over the most that one row, taken out or put in, can
    move what the noise is added to. 0 is no noise, and no bound."""
    each: Each
    """When noise is added: in every local `step`, to the clipped gradients of the rows of a batch; to every `row` that
    is sent; or once a `round` by the server, to what it has combined."""
    singly: bool = False
    """Of a `row` with several behind it: whether each of them was bounded by itself before they were put together. One
    that is taken out then moves what is sent as far as `noise` says; else it can turn it around, twice as far."""

    def __post_init__(self) -> None:
        if not self.noise >= 0:
            raise ConfigError(f"a mechanism of phase '{self.phase}' has noise = {self.noise!r}: expected at least 0")

    @property
    def hides_from_server(self) -> bool:
        """Whether noise is added before anything leaves the client; if not, only those who get the result see it."""
        return self.each != "round"


def refuse_few_bits(weights: Mapping[str, Tensor], whose: str) -> None:
    """Raise `ConfigError` where lengths cannot be held to a clip: in half precision squares of small numbers vanish,
    and rounding alone moves a weight by more than a clip may allow."""
    for name, leaf in weights.items():
        if leaf.is_floating_point() and torch.finfo(leaf.dtype).bits < _BITS:
            raise ConfigError(
                f"{whose}: noise is as wide as clipped numbers are long, and in numbers of few bits, as '{name}' has "
                f"({str(leaf.dtype).removeprefix('torch.')}), they come out longer: expected a network in single "
                "precision"
            )
