"""Noise on shared rows."""

import dataclasses
import math
from dataclasses import dataclass
from types import MappingProxyType

from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism
from fewfed.method import Context, Setup
from fewfed.methods.parts.clipping import clipped
from fewfed.methods.parts.protection import Protected, Protection
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Noised(Protection):
    """Every row that is sent is clipped to an L2 norm, and Gaussian noise in proportion to it is added.

    z' = z · min(1, clip/‖z‖) + N(0, (sigma·clip)² I), each time it is sent anew: the Gaussian mechanism with noise
    multiplier sigma for one row that is there or not; who replaces a row moves it by up to 2·clip. A row that is sent
    in many rounds, or in several copies, is released as often. Labels, and how many rows there are, are sent as they
    are. In a simulation the noise comes from the seed, at a real site from the operating system. Norms are of the whole
    row, and what they usually are depends on the network: look before choosing `clip`.
    """

    name = "noised"
    paper = "Dwork & Roth, The Algorithmic Foundations of Differential Privacy, 2014, appendix A"
    neutral = MappingProxyType({"clip": math.inf, "sigma": 0.0})

    clip: float = setting(10.0, "largest L2 norm of a row; inf = as it is", gt=0)
    sigma: float = setting(0.02, "deviation of the noise on each number, as a part of clip; 0 = none", ge=0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.sigma and math.isinf(self.clip):
            raise ConfigError(
                f"sigma = {self.sigma} with clip = inf: noise is sigma times clip; expected a finite clip, or "
                "sigma = 0",
                key="clip",
                value=self.clip,
            )

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        own = (
            # Several arrays of one row are each as long as the clip: a row moves all of them.
            Mechanism(phase.name, frozenset(phase.row_uploads), self.sigma / len(phase.row_uploads) ** 0.5, "row")
            for phase in self.inner.phases(clock)
            if phase.row_uploads and self.sigma
        )
        return (*self.inner.mechanisms(clock), *own)

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Noise(self, phase))


class Noise(Protected[Noised]):
    """Rows leave clipped and noisy."""

    def shielded(self, rows: Tree, ctx: Context) -> Tree:
        clip, size = self.wrapper.clip, self.wrapper.sigma * self.wrapper.clip if self.wrapper.sigma else 0.0
        short = {name: clipped(value, clip) for name, value in rows.items()}
        if not size:
            return short
        noise = self.noise(rows, ctx, "noise on rows")
        return {name: value + size * noise[name] for name, value in short.items()}
