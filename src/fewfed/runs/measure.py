"""The exchange before a run in which clients measure their inputs together: sums over all of them, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.method import Combined, Context, Method, Part, Report, Setup
from fewfed.phase import EQUAL, NOTHING, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.tree import Tree


@dataclass(frozen=True)
class MeasureInputs(Method):
    """Mean and deviation of every channel, or column, over the rows of all clients, from three sums of each client.

    First the number of values that are not missing, their sum and the sum of their sizes; then, around the common mean
    and in units of the mean size, the sum of squares, so that no digits are lost where a mean is large beside the
    deviation. Last, everybody receives mean and deviation. All are sums: none of a single client need be seen.
    """

    name = "measure-inputs"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        values = {
            "count": Upload(Combine.SUM, Role.COUNTS),
            "sum": Upload(Combine.SUM, Role.STATISTICS),
            "size": Upload(Combine.SUM, Role.STATISTICS),
        }
        squares = {"squares": Upload(Combine.SUM, Role.STATISTICS)}
        return (
            Phase("measure values", Values(self), uploads=values, cohort=Cohort.ALL, weight=EQUAL),
            Phase("measure squares", Squares(self), uploads=squares, cohort=Cohort.ALL, weight=EQUAL),
            Phase("receive scaling", Receive(self), uploads=NOTHING, cohort=Cohort.ALL, weight=EQUAL),
        )

    def server_init(self, setup: Setup) -> Tree:
        blank = torch.zeros(setup.shape[0], dtype=torch.float64)
        return dict.fromkeys(("count", "mean", "unit", "std"), blank)


class NoModel(Part[MeasureInputs]):
    """What the three phases have in common: nothing is trained."""

    def begin(self, ctx: Context) -> Tree:
        return {"params": {}, "buffers": {}}


class Values(NoModel):
    def broadcast(self, server: Tree) -> Tree:
        return {}

    def end(self, work: Tree, ctx: Context) -> Report:
        values = _by_channel(ctx.data.x)
        there, filled = ~torch.isnan(values), values.nan_to_num(0.0)
        return Report({"count": there.sum(1).double(), "sum": filled.sum(1), "size": filled.abs().sum(1)}, {}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        found = combined.values
        count = found["count"].clamp(min=1)
        size = found["size"] / count
        unit = torch.where(size > 0, size, torch.ones_like(size))
        return {**server, "count": count, "mean": found["sum"] / count, "unit": unit}


class Squares(NoModel):
    def broadcast(self, server: Tree) -> Tree:
        return {"mean": server["mean"], "unit": server["unit"]}

    def end(self, work: Tree, ctx: Context) -> Report:
        mean, unit = ctx.shared["mean"].unsqueeze(1), ctx.shared["unit"].unsqueeze(1)
        off = ((_by_channel(ctx.data.x) - mean) / unit).nan_to_num(0.0)
        return Report({"squares": off.square().sum(1)}, {}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return {**server, "std": (combined.values["squares"] / server["count"]).sqrt() * server["unit"]}


class Receive(NoModel):
    def broadcast(self, server: Tree) -> Tree:
        return {"mean": server["mean"], "std": server["std"]}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {}, 1.0)


def _by_channel(x: Tensor) -> Tensor:
    """Channels, or columns, by values, in double precision."""
    return x.transpose(0, 1).flatten(1).double()
