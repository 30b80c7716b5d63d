"""Noise in proportion to each shared row."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from fewfed.method import Context, Report
from fewfed.methods.parts.protection import Protection, fresh_noise, staying_noise
from fewfed.phase import Phase
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around


@dataclass(frozen=True)
class Blurred(Protection):
    """Every row that is sent has Gaussian noise on it, as wide as a part of the row's own deviation.

    z' = z + noise · s(z) · n, n ~ N(0, I), where s(z)² is the mean squared difference of the row's numbers from their
    mean. One setting fits any network and any cut, where `noised` must be told how long rows are. n is drawn once for
    the client's rows behind what is sent, one or a group, and stays; a part of its variance, `fresh`, is drawn anew
    each time. Who keeps packets of many rounds averages away what is fresh, and never what stays; but of a row that is
    sent again by a network that has changed, the difference of two packets has nothing left of what stays. So neither
    protects alone from who has several rounds, and a half of each does better than both (docs/defences.md).

    No bound follows: how wide the noise is depends on the row itself. Labels are sent as they are. In a simulation the
    noise comes from the seed. At a real site it comes from the operating system, and noise that stays from a secret
    that comes from there and is kept at the site, in its state folder.
    """

    name = "blurred"
    paper = "this project's own; as additive noise in proportion, Kim, A Method for Limiting Disclosure in Microdata \
Based on Random Noise and Transformation, ASA 1986"
    neutral = MappingProxyType({"noise": 0.0})
    keeps_bounds = True

    noise: float = setting(0.5, "deviation of the noise on each number, as a part of the row's own; 0 = none", ge=0)
    fresh: float = setting(
        0.5, "part of the noise's variance that is drawn anew each time; 0 = all stays, 1 = none", ge=0, le=1
    )

    @property
    def acts(self) -> bool:
        return self.noise > 0

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Blur(self, phase))


class Blur(Around[Blurred]):
    """Rows leave noisy."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload=self._noisy(report.upload, ctx, self.origins(ctx)))

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        behind = rows.repeat_interleave(self.copies).unsqueeze(1)
        return self._noisy(super().sends(work, ctx, rows), ctx, behind)

    def _noisy(self, upload: Tree, ctx: Context, origins: Tensor) -> Tree:
        rows = {name: upload[name] for name in self.phase.row_uploads}
        drawn = self._drawn(rows, ctx, origins)
        noisy = {name: value + self.wrapper.noise * deviation(value) * drawn[name] for name, value in rows.items()}
        return {**upload, **noisy}

    def _drawn(self, rows: Tree, ctx: Context, origins: Tensor) -> Tree:
        purpose, fresh = f"blur of rows {len(self.wrapper.layers)}", self.wrapper.fresh
        stays = staying_noise(rows, ctx, purpose, origins) if fresh < 1 else {}
        new = fresh_noise(rows, ctx, purpose) if fresh else {}
        if not (stays and new):
            return stays or new
        return {name: (1 - fresh) ** 0.5 * stays[name] + fresh**0.5 * new[name] for name in rows}


def deviation(rows: Tensor) -> Tensor:
    """Of the numbers of each row, in the shape that multiplies rows."""
    numbers = rows.flatten(1).double()
    found: Tensor = (numbers - numbers.mean(1, keepdim=True)).square().mean(1).sqrt()
    return found.reshape(-1, *[1] * (rows.dim() - 1)).to(rows.dtype)
