"""How clients train: epochs, batches, optimiser and learning rate, the same for every method of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fewfed.optim import Optimizer
from fewfed.plan import BatchRule, Sampling
from fewfed.settings import Stated, setting


@dataclass(frozen=True)
class Training(Stated, Optimizer):
    """Local training. The defaults are those of FLea's KDD paper, section 4.1.2, with plain Adam moments.

    A field that is not named is the method's to set (SCAFFOLD's formula is for plain SGD), and its preset's.
    """

    epochs: int = setting(5, "local epochs of a full training phase", ge=1)
    batch: int = setting(32, "rows of a local batch", ge=1)
    batch_rule: BatchRule = setting("fill", "what happens to a short last batch (docs/training)")
    sampling: Sampling = setting("uniform", "how a round's clients are drawn")
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
