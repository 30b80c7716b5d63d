"""Methods around methods: a wrapper hands everything to what it wraps and overrides a little."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.method import Batch, Combined, Context, Differentiate, Method, Report, Setup
from fewfed.phase import Clock, Phase
from fewfed.plan import Draws
from fewfed.tree import Tree


@dataclass(frozen=True)
class Wrapper(Method):
    """Delegates every function to `inner`. A subclass calls `super()` for what stays as it was."""

    inner: Method = field(default_factory=Method)

    @property
    def label(self) -> str:
        return f"{self.name}({self.inner.label})"

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
    def needs_classes(self) -> bool:  # type: ignore[override]
        return self.inner.needs_classes

    def check(self, setup: Setup) -> None:
        self.inner.check(setup)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return self.inner.phases(clock)

    def server_init(self, setup: Setup) -> Tree:
        return self.inner.server_init(setup)

    def client_init(self, setup: Setup) -> Tree:
        return self.inner.client_init(setup)

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        return self.inner.broadcast(server, phase)

    def personal(self, server: Tree, phase: Phase, client: int) -> Tree:
        return self.inner.personal(server, phase, client)

    def data(self, ctx: Context) -> Examples:
        return self.inner.data(ctx)

    def draw(self, draws: Draws, ctx: Context, size: int) -> Tree:
        return self.inner.draw(draws, ctx, size)

    def begin(self, ctx: Context) -> Tree:
        return self.inner.begin(ctx)

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return self.inner.loss(work, ctx, batch)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        return self.inner.gradient(differentiate, work, ctx, batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        return self.inner.end(work, ctx)

    def absorb(self, server: Tree, phase: Phase, combined: Combined) -> Tree:
        return self.inner.absorb(server, phase, combined)

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return self.inner.predictor(server, state)
