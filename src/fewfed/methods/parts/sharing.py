"""Phases in which clients send rows one by one."""

from __future__ import annotations

from torch import Tensor

from fewfed.method import Context, Exchange, Report
from fewfed.tree import Tree


class SendsRows(Exchange):
    """A client sends what `sends` makes of the rows in `chosen`, and `copies` of each. To stand before a `Part`."""

    @property
    def copies(self) -> int:
        return 1

    def chosen(self, ctx: Context) -> Tensor:
        """The numbers of the rows that the client sends."""
        raise NotImplementedError

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report(self.sends(work, ctx, self.chosen(ctx)), {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        return self.chosen(ctx).repeat_interleave(self.copies).unsqueeze(1)


class SendsFeatures(SendsRows):
    """What is sent are features after `shares_at` stages, as in a test, and labels: `features` and `labels`."""

    def presented(self, work: Tree, x: Tensor) -> Tensor:
        """Inputs as the network is to see them."""
        return x

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        x = self.presented(work, ctx.data.x[rows])
        features = ctx.net.apply(work, x, stop=self.shares_at(ctx), train=False)
        return {"features": features, "labels": ctx.data.y[rows]}
