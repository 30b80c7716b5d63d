"""Averages of rows with noise that bounds what they tell of each."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism
from fewfed.method import Context, Report, Setup
from fewfed.methods.parts.clipping import clipped
from fewfed.methods.parts.groups import Average, Groups
from fewfed.methods.parts.protection import fresh_noise
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Veiled(Groups):
    """What is sent is the average of at least k clipped rows of one class of the client, with noise that bounds it.

    z' = 1/m Σ z_i·min(1, c/‖z_i‖) + N(0, (sigma·c/m)² I), c = clip·√d for rows of d numbers. As in `grouped`, no row is
    in two averages and a class with fewer than k rows is left out; but no row of another class is: the class is parted
    evenly, m rows each. Every row is clipped by itself, so one that is taken out moves its average by at most c/m, and
    the Gaussian mechanism has the noise multiplier sigma, however large the group: the larger, the less noise. Grouping
    first and noise afterwards, `noised(grouped(M))`, cannot say so. Noise is new each time, and a row that is sent in
    many rounds is released as often. `clip` is in units of the numbers themselves, so that one setting fits any cut
    behind BatchNorm. How many rows are in an average, and its label, are not hidden.
    """

    name = "veiled"
    paper = "Soria-Comas et al., Enhancing Data Utility in Differential Privacy via Microaggregation-Based \
k-Anonymity, VLDB Journal 2014; here of features"
    neutral = MappingProxyType({"k": 1, "clip": math.inf, "sigma": 0.0})
    keeps_bounds = True

    clip: float = setting(1.0, "largest root mean square of the numbers of a row; inf = as it is", gt=0)
    sigma: float = setting(0.1, "noise multiplier: how wide noise is beside what one row can move; 0 = none", ge=0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.sigma and math.isinf(self.clip):
            raise ConfigError(
                f"sigma = {self.sigma} with clip = inf: noise is in proportion to clip; expected a finite clip, or "
                "sigma = 0",
                key="clip",
                value=self.clip,
            )

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        own = (
            # Several arrays of one row are each as long as the clip: a row moves all of them.
            Mechanism(
                phase.name, frozenset(phase.row_uploads), self.sigma / len(phase.row_uploads) ** 0.5, "row", singly=True
            )
            for phase in self.inner.phases(clock)
            if phase.row_uploads and self.sigma
        )
        return (*super().mechanisms(clock), *own)

    @property
    def acts(self) -> bool:
        return super().acts or self.sigma > 0 or math.isfinite(self.clip)

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(super().protected(phase), does=Veil(self, phase))


class Veil(Average[Veiled]):
    """Noisy averages leave instead of rows."""

    def parted(self, rows: Tensor, count: int) -> Sequence[Tensor]:
        return rows.tensor_split(count)

    def mean(self, name: str, sent: Tensor, groups: Tensor) -> Tensor:
        rows = clipped(sent, self._norm(sent)) if name in self.phase.row_uploads else sent
        copies = len(sent) // int((groups >= 0).sum())
        each = torch.split(rows, (copies * (groups >= 0).sum(1)).tolist())
        those = [group.reshape(-1, copies, *sent.shape[1:]) for group in each]
        return torch.cat([group.mean(0) if sent.is_floating_point() else group[0] for group in those])

    def end(self, work: Tree, ctx: Context) -> Report:
        report, sigma = super().end(work, ctx), self.wrapper.sigma
        if not sigma:
            return report
        rows = {name: report.upload[name] for name in self.phase.row_uploads}
        noise = fresh_noise(rows, ctx, f"veil over rows {len(self.wrapper.layers)}")
        behind = (self.origins(ctx) >= 0).sum(1).to(next(iter(rows.values())).device)
        noisy = {
            name: value + sigma * self._norm(value) / behind.reshape(-1, *[1] * (value.dim() - 1)) * noise[name]
            for name, value in rows.items()
        }
        return report._replace(upload={**report.upload, **noisy})

    def _norm(self, rows: Tensor) -> float:
        """The largest length of a row."""
        return self.wrapper.clip * math.sqrt(math.prod(rows.shape[1:]))
