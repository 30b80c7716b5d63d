"""FedYogi."""

from dataclasses import dataclass

from torch import Tensor

from fewfed.methods.fedadam import FedAdam


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Reddi et al., ICLR 2021 (FedOpt, Algorithm 2): as FedAdam with Yogi's second moment.

    v ← v − (1−b2)·D²·sign(v − D²), which forgets large steps slowly; the rule is unverified against the text.
    """

    name = "fedyogi"
    family = "server optimiser"
    paper = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
