"""Methods around methods: a wrapper hands everything to what it wraps and changes a little.

What server and clients know is kept apart: the inner method's tree under "inner", the wrapper's under "own". Neither
sees the other's. Only what crosses between server and client is one tree, since it is declared name by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.method import Batch, Combined, Context, Differentiate, Exchange, Method, Report, Setup
from fewfed.phase import Clock, Phase
from fewfed.plan import Random
from fewfed.tree import Tree


@dataclass(frozen=True)
class Wrapper(Method):
    """A method around `inner`, whose phases it changes one by one (`around`) or adds to (`phases`)."""

    inner: Method = field(default_factory=Method)

    @property
    def label(self) -> str:
        return f"{self.name}({self.inner.label})"

    @property
    def layers(self) -> tuple[Method, ...]:
        return (self, *self.inner.layers)

    @property
    def observed(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner.observed

    @property
    def personal_model(self) -> bool:  # type: ignore[override]
        return self.inner.personal_model

    @property
    def steps_differ(self) -> str:  # type: ignore[override]
        return self.inner.steps_differ

    @property
    def another_aim(self) -> str:  # type: ignore[override]
        return self.inner.another_aim

    @property
    def needs_classes(self) -> bool:  # type: ignore[override]
        return self.inner.needs_classes

    @property
    def needs_stages(self) -> bool:  # type: ignore[override]
        return self.inner.needs_stages

    def check(self, setup: Setup) -> None:
        self.inner.check(setup)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return tuple(self.around(phase) for phase in self.inner.phases(clock))

    def around(self, phase: Phase) -> Phase:
        """A phase of the inner method as it is under this wrapper: by default the same."""
        return dataclasses.replace(phase, does=Around(self, phase))

    def own_init(self, setup: Setup) -> Tree:
        """What the server knows for the wrapper before the first round."""
        return {}

    def server_init(self, setup: Setup) -> Tree:
        return {"inner": self.inner.server_init(setup), "own": self.own_init(setup)}

    def client_init(self, setup: Setup) -> Tree:
        return {"inner": self.inner.client_init(setup), "own": {}}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return self.inner.predictor(server["inner"], state.get("inner", {}))

    def presented(self, model: Tree, x: Tensor) -> Tensor:
        return self.inner.presented(model, x)


W = TypeVar("W", bound=Wrapper)


@dataclass(frozen=True)
class Around(Exchange, Generic[W]):
    """The functions of an inner method's phase under a wrapper; a subclass calls `super()` for what stays as it was."""

    wrapper: W
    phase: Phase
    """The inner method's."""

    def inside(self, ctx: Context) -> Context:
        """What the inner method sees: its own phase, and its own part of what the client remembers."""
        return dataclasses.replace(ctx, phase=self.phase, state=ctx.state["inner"])

    def broadcast(self, server: Tree) -> Tree:
        return self.phase.does.broadcast(server["inner"])

    def personal(self, server: Tree, client: int) -> Tree:
        return self.phase.does.personal(server["inner"], client)

    def data(self, ctx: Context) -> Examples:
        return self.phase.does.data(self.inside(ctx))

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return self.phase.does.draw(random, self.inside(ctx), size)

    def begin(self, ctx: Context) -> Tree:
        return self.phase.does.begin(self.inside(ctx))

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return self.phase.does.loss(work, self.inside(ctx), batch)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        return self.phase.does.gradient(differentiate, work, self.inside(ctx), batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = self.phase.does.end(work, self.inside(ctx))
        return report._replace(state=self.remembered(report, ctx, ctx.state["own"]))

    def origins(self, ctx: Context) -> Tensor:
        return self.phase.does.origins(self.inside(ctx))

    @property
    def copies(self) -> int:
        return self.phase.does.copies

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        return self.phase.does.sends(work, self.inside(ctx), rows)

    def shares_at(self, known: Setup | Context) -> int:
        return self.phase.does.shares_at(known)

    def decoded(self, arrays: Tree) -> Tree:
        return self.phase.does.decoded(arrays)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        """Uploads that the inner phase does not declare are the wrapper's, and not shown to the inner method."""
        theirs = {name: value for name, value in combined.values.items() if name in self.phase.uploads}
        return {**server, "inner": self.phase.does.absorb(server["inner"], combined._replace(values=theirs))}

    def remembered(self, report: Report, ctx: Context, own: Tree) -> Tree:
        """What the client remembers of an inner report and of the wrapper's own."""
        if not ctx.phase.keeps_state:
            return {}
        return {"inner": report.state if self.phase.keeps_state else ctx.state["inner"], "own": own}
