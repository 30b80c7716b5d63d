"""FedNTD."""

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.losses.features import not_true_divergence
from fewfed.method import Batch, Context, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Lee et al., NeurIPS 2022: the received model teaches the classes that are *not* the true one.

    Loss: CE + beta·tau²·KL(p_global' ‖ p_local'), where the true class's logit is deleted from both before the
    soft-max. The teacher runs in eval mode without gradients.
    """

    name = "fedntd"
    family = "local objective"
    paper = "Lee et al., Preservation of the Global Knowledge by Not-True Distillation in FL, NeurIPS 2022"
    needs_classes = True
    neutral = MappingProxyType({"beta": 0.0})

    beta: float = setting(1.0, "weight of the distillation; authors 1", ge=0)
    tau: float = setting(1.0, "temperature; authors' configuration 1 (3 is their class's unused default)", gt=0)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedntd' deletes the true class's logit: expected a classification task")

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        student = ctx.net.apply(work, batch.x)
        teacher = ctx.net.apply(ctx.shared["model"], batch.x, train=False)
        distil = not_true_divergence(teacher, student, batch.y, self.tau)
        return {"task": ctx.task.loss(student, batch.y), "distil": self.beta * distil}
