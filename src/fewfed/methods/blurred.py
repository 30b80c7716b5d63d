"""Noise in proportion to each shared row."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from fewfed.method import Context
from fewfed.methods.parts.protection import Protected, Protection
from fewfed.phase import Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Blurred(Protection):
    """Every row that is sent has Gaussian noise on it, as wide as a part of the row's own deviation.

    z' = z + noise · s(z) · N(0, I), where s(z)² is the mean squared difference of the row's numbers from their mean;
    new each time it is sent. One setting fits any network and any cut, where `noised` must be told how long rows are.
    No bound follows: how wide the noise is depends on the row itself. A row that is sent in many rounds is seen under
    other noise each time, and their mean shows it better. Labels are sent as they are. In a simulation the noise comes
    from the seed, at a real site from the operating system.
    """

    name = "blurred"
    paper = "this project's own; as additive noise in proportion, Kim, A Method for Limiting Disclosure in Microdata \
Based on Random Noise and Transformation, ASA 1986"
    neutral = MappingProxyType({"noise": 0.0})
    keeps_bounds = True

    noise: float = setting(0.5, "deviation of the noise on each number, as a part of the row's own; 0 = none", ge=0)

    @property
    def acts(self) -> bool:
        return self.noise > 0

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Blur(self, phase))


class Blur(Protected[Blurred]):
    """Rows leave noisy."""

    def shielded(self, rows: Tree, ctx: Context) -> Tree:
        drawn = self.noise(rows, ctx, "blur of rows")
        return {name: value + self.wrapper.noise * deviation(value) * drawn[name] for name, value in rows.items()}


def deviation(rows: Tensor) -> Tensor:
    """Of the numbers of each row, in the shape that multiplies rows."""
    numbers = rows.flatten(1).double()
    found: Tensor = (numbers - numbers.mean(1, keepdim=True)).square().mean(1).sqrt()
    return found.reshape(-1, *[1] * (rows.dim() - 1)).to(rows.dtype)
