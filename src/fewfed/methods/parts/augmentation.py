"""Augmentations: wrappers that change what a step of any inner method sees. Nothing is exchanged for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Differentiate, Method, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.statistics import partners
from fewfed.phase import Phase
from fewfed.plan import Random
from fewfed.task import Score, Task
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper


@dataclass(frozen=True)
class Augmentation(Wrapper):
    """Draws numbers of its own for every step, and hands the inner loss another context or batch."""

    family = "augmentation"

    inner: Method = field(default_factory=FedAvg)

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        """The augmentation's randomness for one step of `size` rows; by default there is none."""
        return {}

    def augmented(self, own: Tree, ctx: Context, batch: Batch) -> tuple[Context, Batch]:
        """What the inner loss sees instead of this context and batch; by default the same."""
        return ctx, batch

    def around(self, phase: Phase) -> Phase:
        if not phase.trains_predictor:
            return super().around(phase)
        return dataclasses.replace(phase, does=Augmented(self, phase))


A = TypeVar("A", bound=Augmentation)


class Augmented(Around[A]):
    """A training phase whose steps are augmented."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"inner": super().draw(random, ctx, size), "own": self.wrapper.own_draw(random, ctx, size)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return super().loss(work, *self.wrapper.augmented(batch.drawn["own"], ctx, inner_batch(batch)))

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        return super().gradient(differentiate, work, ctx, inner_batch(batch))


@dataclass(frozen=True)
class LabelMixing(Augmentation):
    """An augmentation whose rows have two labels; the task's loss is mixed, whatever the task is."""

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.inner.needs_classes:
            raise ConfigError(
                f"method '{self.name}' mixes labels through the task's loss, but '{self.inner.label}' uses class "
                "labels beside that loss too: expected an inner method that does not, such as fedavg or fedprox"
            )
        if any(isinstance(method, LabelMixing) for method in self.inner.layers):
            raise ConfigError(
                f"method '{self.name}' mixes labels, and '{self.inner.label}' does already: whose label a row of a "
                "mixture of mixtures has depends on which comes first in the network; mix labels once"
            )


@dataclass(frozen=True)
class MixedLabels:
    """The task whose loss is weight · L(y) + (1 − weight) · L(y of the partner)."""

    task: Task
    order: Tensor
    weight: Tensor

    @property
    def classes(self) -> int:
        return self.task.classes

    @property
    def outputs(self) -> int:
        return self.task.outputs

    @property
    def score_type(self) -> type[Score]:
        return self.task.score_type

    def blank_labels(self, rows: int, shape: tuple[int, ...]) -> Tensor:
        return self.task.blank_labels(rows, shape)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        theirs = y[partners(self.order, len(y))]
        return self.weight * self.task.loss(output, y) + (1 - self.weight) * self.task.loss(output, theirs)

    def soft_labels(self, y: Tensor) -> Tensor:
        ours, theirs = self.task.soft_labels(y), self.task.soft_labels(y[partners(self.order, len(y))])
        return self.weight * ours + (1 - self.weight) * theirs

    def soft_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.task.soft_loss(output, target)

    def score(self, output: Tensor, y: Tensor) -> Score:
        return self.task.score(output, y)


def inner_batch(batch: Batch) -> Batch:
    """The batch with the inner method's own random."""
    return batch._replace(drawn=batch.drawn["inner"])


def with_mixed_labels(ctx: Context, order: Tensor, weight: Tensor) -> Context:
    return dataclasses.replace(ctx, task=MixedLabels(ctx.task, order, weight))
