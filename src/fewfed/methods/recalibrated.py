"""Later stages retrained at the server, round by round."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.method import Combined, Context, Method, Setup
from fewfed.methods.flea import FLea
from fewfed.methods.parts import retraining
from fewfed.methods.parts.balance import levelled
from fewfed.methods.parts.buffer import with_history
from fewfed.methods.parts.retraining import RETRAINED, Retrain
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

ROWS = ("features", "labels")


@dataclass(frozen=True)
class Recalibrated(Wrapper):
    """After each round the server retrains the stages behind the cut on the features that clients sent, class-balanced.

    For any method whose clients send features with labels: those of the last `history` rounds are kept, every class is
    repeated until it has as many rows as the largest, and the stages that come after the shared features are trained on
    them for `epochs` epochs of Adam. BatchNorm computes with the statistics it has, and they stay as they are; earlier
    stages stay too. The retrained model predicts, and the next round starts from it; where the method predicts with
    another model than it trains, it only predicts. Nothing more leaves a client. The price: passes over the kept rows
    at the server, and clients that have just received the model receive the retrained one the next time.
    """

    name = "recalibrated"
    family = "feature sharing"
    paper = (
        "Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR 2020; here in rounds"
    )
    neutral = MappingProxyType({"epochs": 0})
    keeps_bounds = True
    another_aim = "the server also lowers the loss on shared rows, every class alike"

    inner: Method = field(default_factory=FLea)
    epochs: int = setting(2, "epochs of retraining after each round; 0 = none", ge=0)
    history: int = setting(10, "rounds that rows stay with the server for this", ge=1)
    batch: int = setting(64, "rows of a batch of retraining", ge=1)
    lr: float = setting(3e-4, "learning rate of retraining", gt=0)

    @cached_property
    def source(self) -> Phase:
        """The phase in which clients send features with labels."""
        return retraining.labelled_features(self.inner, self.name)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if any(isinstance(layer, Recalibrated) for layer in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' is retrained at the server already: wrap it in '{self.name}' once")
        retraining.check(setup, self.inner, self.name, self.source.does.shares_at(setup))

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        inner = super().phases(clock)
        if not self.epochs or self.source.name not in (phase.name for phase in inner):
            return inner
        # Adam divides by the size of a gradient and eps: with the usual 1e-8 rounding alone would move weights.
        own = retraining.retraining(self.name, Balanced(self), self.epochs, self.batch, self.lr, eps=1e-5)
        return (*inner, own)

    def around(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Onward(self, phase)) if self.epochs else super().around(phase)

    def trained(self, server: Tree) -> Tree:
        """The inner method's model."""
        return super().predictor(server, {})

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return retraining.with_later(self.trained(server), server["own"].get(RETRAINED, {}))


class Onward(Around[Recalibrated]):
    """A phase of the inner method: it goes on from what was retrained, and the server keeps the rows that it brings."""

    def broadcast(self, server: Tree) -> Tree:
        shared, method = super().broadcast(server), self.wrapper
        goes_on = self.phase.trains_predictor and shared.get("model") is method.trained(server)
        return {**shared, "model": method.predictor(server, {})} if goes_on else shared

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        after, own, source = super().absorb(server, combined), server["own"], self.wrapper.source
        if self.phase.name == source.name:
            sent = self.decoded({name: combined.values[name] for name in source.uploads})
            new = dict(zip(ROWS, (sent[source.row_upload], sent[source.label_upload]), strict=True))
            own = with_history(own, {**own, **new}, ROWS, self.wrapper.history)
        is_past = self.wrapper.trained(after) is not self.wrapper.trained(server)
        return {**after, "own": {name: own[name] for name in own if name != RETRAINED or not is_past}}


class Balanced(Retrain[Recalibrated]):
    """Every class has as many rows. BatchNorm's statistics stay."""

    statistics = False

    def start(self, known: Setup | Context) -> int:
        return self.method.source.does.shares_at(known)

    def broadcast(self, server: Tree) -> Tree:
        return {"model": self.method.trained(server), **{name: server["own"][name] for name in ROWS}}

    def data(self, ctx: Context) -> Examples:
        random = ctx.plan.random(ctx.clock.round, "balance", ctx.client)
        return levelled(Examples(*(ctx.shared[name] for name in ROWS)), random)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        was_sent = len(server["own"]["labels"])  # What was trained on a blank row is not for use.
        return {**server, "own": {**server["own"], **combined.values}} if was_sent else server
