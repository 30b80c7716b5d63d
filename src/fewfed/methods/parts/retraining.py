"""The server retrains the stages behind a cut on features that it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Exchange, M, Method, Part, Report, Setup
from fewfed.methods.parts.protection import sending, sends_features
from fewfed.phase import EQUAL, Cohort, Combine, Phase, Role, Upload
from fewfed.tree import Tree

RETRAINED = "retrained"
_TRAINING: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "adam", "reset": "round", "weight_decay": 0.0, "clip": 0.0, "batch_rule": "fill", "lr_decay": 0.0}
)


def retraining(name: str, does: Exchange, epochs: int, batch: int, lr: float, eps: float = 1e-8) -> Phase:
    """A phase inside the server that trains by Adam, whatever clients train by."""
    made = {RETRAINED: Upload(Combine.MEAN, Role.MODEL)}
    training = {**_TRAINING, "lr": lr, "batch": batch, "eps": eps}
    return Phase(name, does, epochs, made, Cohort.SERVER, weight=EQUAL, training=training)


class Retrain(Part[M]):
    """Trains the stages behind `start`, which alone are in the work tree."""

    statistics: ClassVar[bool] = True
    """Whether BatchNorm computes with the batch's statistics and follows them, as in training, or with what it has."""

    def start(self, known: Setup | Context) -> int:
        """How many stages the rows have passed."""
        raise NotImplementedError

    def begin(self, ctx: Context) -> Tree:
        after = ctx.net.keys_of(ctx.net.stages[self.start(ctx) :])
        return {
            part: tree.clone({name: value for name, value in leaves.items() if name in after})
            for part, leaves in ctx.shared["model"].items()
        }

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        output = ctx.net.apply(work, batch.x, start=self.start(ctx), train=self.statistics)
        return {"retrain": ctx.task.loss(output, batch.y)}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({RETRAINED: work}, {}, 1.0)


def with_later(model: Tree, later: Tree) -> Tree:
    """A model in which some stages are others."""
    return {part: {**leaves, **later.get(part, {})} for part, leaves in model.items()}


def labelled_features(method: Method, wrapper: str) -> Phase:
    """The phase in which clients of a method send features with labels, for a wrapper that needs one."""
    found = [phase for phase in sending(method) if sends_features(phase) and phase.label_upload]
    if not found:
        raise ConfigError(
            f"method '{wrapper}' needs features that clients send with their labels, and clients of '{method.label}' "
            "send none: expected a method that shares features"
        )
    return found[0]


def check(setup: Setup, method: Method, wrapper: str, start: int) -> None:
    """Raise `ConfigError` where there is no common model, or no stage of it is left to retrain."""
    if method.personal_model:
        raise ConfigError(f"method '{wrapper}' retrains one common model, which '{method.label}' does not have")
    if start == len(setup.net.stages):
        raise ConfigError(
            f"method '{wrapper}' retrains the stages behind the shared features, but '{method.label}' shares what "
            "comes out of the last: expected a cut before it",
            key="cut",
        )
