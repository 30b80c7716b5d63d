"""How clients train: epochs, batches, optimiser and learning rate, the same for every method of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fewfed.plan import BatchRule, Sampling
from fewfed.settings import Stated, setting

Weighting = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Optimizer:
    """Plain or momentum SGD, Adam, AdamW, with an optional bound on the gradient norm of the whole model."""

    optimizer: Literal["sgd", "adam", "adamw"] = setting("adam", "local optimiser")
    momentum: float = setting(0.0, "SGD momentum", ge=0, lt=1)
    beta1: float = setting(0.9, "Adam's first moment", ge=0, lt=1)
    beta2: float = setting(0.999, "Adam's second moment", ge=0, lt=1)
    eps: float = setting(1e-8, "Adam's epsilon", gt=0)
    weight_decay: float = setting(0.0, "L2 penalty (decoupled for adamw)", ge=0)
    clip: float = setting(0.0, "largest gradient norm over all parameters; 0 = no bound", ge=0)
    reset: Literal["round", "step", "never"] = setting(
        "round", "when moments are forgotten: each round, each step (released FLea code), or never: they stay at home"
    )


@dataclass(frozen=True)
class Training(Stated, Optimizer):
    """Local training. The defaults are those of FLea's KDD paper, section 4.1.2, with plain Adam moments.

    A field that is not named is the method's to set (SCAFFOLD's formula is for plain SGD), and its preset's.
    """

    epochs: int = setting(5, "local epochs of a full training phase", ge=1)
    batch: int = setting(32, "rows of a local batch", ge=1)
    batch_rule: BatchRule = setting("fill", "what happens to a short last batch (docs/training)")
    sampling: Sampling = setting("uniform", "how a round's clients are drawn")
    weighting: Weighting = setting("samples", "what a client weighs in means: its rows, or the same as everybody")
    lr: float = setting(1e-3, "learning rate of the first round", gt=0)
    lr_rule: Literal["geometric", "linear"] = setting("geometric", "shape of the decay over rounds")
    lr_decay: float = setting(0.02, "part of the learning rate lost each round", ge=0, lt=1)
    lr_floor: float = setting(1e-5, "smallest learning rate", ge=0)

    def lr_at(self, round: int) -> float:
        """Learning rate of a round counted from 0: geometric lr·(1−d)^t, linear lr·(1−d·t), never below the floor."""
        if self.lr_rule == "geometric":
            value = self.lr * (1 - self.lr_decay) ** round
        else:
            value = self.lr * (1 - self.lr_decay * round)
        return max(value, min(self.lr_floor, self.lr))
