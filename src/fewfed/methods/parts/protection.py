"""Defences: wrappers around any method that sends rows. What they must know, they read from the phases' declarations.

`Protection` changes what is sent of rows. `CutProtection` also changes how the features that are sent come about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.losses.features import flat_features
from fewfed.method import Batch, Context, Exchange, Method, Report, Setup
from fewfed.methods.flea import FLea
from fewfed.methods.parts import cuts
from fewfed.phase import Clock, Phase, Role
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

_ROUNDS = 50
"""Of a run whose phases are looked through: every round of it, so that no exchange that comes once is missed."""


def sending(method: Method) -> tuple[Phase, ...]:
    """The phases in which clients of a method send rows, one of each name."""
    phases = [phase for round in range(_ROUNDS) for phase in method.phases(Clock(round, _ROUNDS, 2))]
    return tuple({phase.name: phase for phase in reversed(phases) if phase.row_uploads}.values())


def sends_features(phase: Phase) -> bool:
    """Whether what clients send of rows in a phase are features."""
    return bool(phase.row_uploads) and phase.uploads[phase.row_upload].role is Role.FEATURES


@dataclass(frozen=True)
class Protection(Wrapper):
    """Changes what is sent of rows, whatever method sends them; nothing else. Without brackets it is around FLea."""

    family = "defence"
    coded: ClassVar[bool] = False
    """Whether it sends codes, which only it can read."""
    computes: ClassVar[bool] = True
    """Whether it computes with the numbers that the inner method sends, which then must not be codes."""

    inner: Method = field(default_factory=FLea)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if not sending(self.inner):
            raise ConfigError(
                f"method '{self.name}' protects rows that clients send, and clients of '{self.inner.label}' send none: "
                "expected a method around which it has something to do ('fewfed methods' says what leaves a client)"
            )
        if self.computes and any(isinstance(layer, Protection) and layer.coded for layer in self.inner.layers):
            raise ConfigError(
                f"method '{self.name}' computes with the rows that '{self.inner.label}' sends, but these are codes: "
                "expected what makes codes of them outside, around everything else"
            )

    @property
    def acts(self) -> bool:
        """Whether anything is different with these settings."""
        return True

    def around(self, phase: Phase) -> Phase:
        return self.protected(phase) if self.acts and phase.row_uploads else super().around(phase)

    def protected(self, phase: Phase) -> Phase:
        """A phase in which rows are sent, as it is under this defence."""
        raise NotImplementedError


P = TypeVar("P", bound=Protection)


class Protected(Around[P]):
    """A phase of the inner method that sends `shielded` rows instead of its own."""

    def shielded(self, rows: Tree, ctx: Context) -> Tree:
        """What is sent instead of these uploads of features or inputs, one for one, by name."""
        raise NotImplementedError

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload=self._with_shielded(report.upload, ctx))

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        return self._with_shielded(super().sends(work, ctx, rows), ctx)

    def _with_shielded(self, upload: Tree, ctx: Context) -> Tree:
        if not self.phase.row_uploads:
            return upload
        return {**upload, **self.shielded({name: upload[name] for name in self.phase.row_uploads}, ctx)}

    def noise(self, rows: Tree, ctx: Context, purpose: str) -> Tree:
        """Normal numbers like these rows, which protect them: new in every round, and for every layer its own."""
        return fresh_noise(rows, ctx, f"{purpose} {len(self.wrapper.layers)}")


def fresh_noise(rows: Tree, ctx: Context, purpose: str) -> Tree:
    """Normal numbers like these rows, which protect them: new in every round."""
    random = ctx.plan.protecting(ctx.clock.round, ctx.phase.name, ctx.client, purpose)
    return {name: random.normal(*value.shape).to(value) for name, value in rows.items()}


def staying_noise(rows: Tree, ctx: Context, purpose: str, origins: Tensor) -> Tree:
    """The same numbers in every round for what is made of the same rows of the client, whatever else is sent, and other
    ones for what is made of others. `origins`: which rows are behind each, as `Exchange.origins` has it."""
    groups: list[list[int]] = origins.tolist()

    def drawn(name: str, value: Tensor) -> Tensor:
        if len(groups) != len(value):
            raise ConfigError(
                f"upload '{name}' of phase '{ctx.phase.name}' has {len(value)} rows, and 'origins' says of "
                f"{len(groups)} which rows are behind them: noise that stays is drawn by these; expected as many"
            )
        made = (ctx.plan.staying(ctx.phase.name, ctx.client, f"{purpose} {name}", each) for each in groups)
        each_row = [random.normal(*value.shape[1:]) for random in made]
        return torch.stack(each_row).to(value) if each_row else torch.zeros_like(value)

    return {name: drawn(name, value) for name, value in rows.items()}


@dataclass(frozen=True)
class CutProtection(Protection):
    """Changes training, so that the features at the cut tell less of their inputs."""

    needs_stages = True

    cut: str = setting("", "stage whose features are protected; empty = that after which rows are shared")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        setup.net.require_stages(f"method '{self.name}'")
        if self.source is None:
            raise ConfigError(
                f"method '{self.name}' protects features by how the network is trained, but clients of "
                f"'{self.inner.label}' send inputs, which no training changes: expected a method that shares features"
            )
        if any(type(layer) is type(self) for layer in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' does what '{self.name}' does already: use it once")
        if not self.position(setup):
            raise ConfigError(
                f"cut '{self.cut}' of method '{self.name}' is before the first stage, where features are the inputs: "
                f"expected one of {', '.join(setup.net.stages)}",
                key="cut",
                value=self.cut,
            )

    def position(self, known: Setup | Context) -> int:
        """How many stages there are before the features that are protected."""
        if self.cut:
            return cuts.position(known, self.cut)
        return self.source.shares_at(known) if self.source is not None else 0

    @cached_property
    def source(self) -> Exchange | None:
        """What sends features of rows. Looked for once: steps ask where it takes them."""
        return next((phase.does for phase in sending(self.inner) if sends_features(phase)), None)

    def around(self, phase: Phase) -> Phase:
        if not self.acts or not (phase.trains_predictor or sends_features(phase)):
            return Wrapper.around(self, phase)
        return self.guarded(phase) if phase.trains_predictor else self.protected(phase)

    def guarded(self, phase: Phase) -> Phase:
        """A phase in which the model that predicts is trained, as it is under this defence; it may send rows too."""
        raise NotImplementedError

    def protected(self, phase: Phase) -> Phase:
        return Wrapper.around(self, phase)


C = TypeVar("C", bound=CutProtection)


class Guarded(Around[C]):
    """A training phase with a loss about the features at the cut."""

    def features(self, work: Tree, ctx: Context, batch: Batch) -> Tensor:
        """The batch's features there, by a pass of its own: it leaves running statistics as they are, and does not
        depend on what the inner method does with the batch."""
        model = {"params": work["params"], "buffers": tree.clone(work["buffers"])}
        return flat_features(ctx.net.apply(model, batch.x, stop=self.wrapper.position(ctx)))
