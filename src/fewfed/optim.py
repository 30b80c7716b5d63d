"""Local optimisers as pure settings plus a state: the arithmetic is torch's own functional form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fewfed.settings import setting


@dataclass
class OptimizerState:
    """What one client's optimiser remembers between its steps."""

    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]
    momentum: list[Tensor | None]


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
    reset: Literal["round", "step"] = setting("round", "forget moments each round, or each step (released FLea code)")

    def init(self, params: list[Tensor]) -> OptimizerState:
        if self.optimizer == "sgd":
            return OptimizerState([], [], [], [None] * len(params))
        return OptimizerState(
            [torch.zeros_like(p) for p in params],
            [torch.zeros_like(p) for p in params],
            [torch.zeros((), device=p.device) for p in params],
            [],
        )

    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Update the parameters and the state in place."""
        if not params:
            return
        if self.clip > 0:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
            factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            grads = [g * factor for g in grads]
        with torch.no_grad():
            if self.optimizer == "sgd":
                self._sgd(params, grads, state, lr)
            else:
                self._adam(params, grads, state, lr)
        if self.reset == "step":
            fresh = self.init(params)
            state.first, state.second, state.steps, state.momentum = (
                fresh.first,
                fresh.second,
                fresh.steps,
                fresh.momentum,
            )

    def _sgd(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        sgd(
            params,
            grads,
            state.momentum,
            foreach=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adam(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        self.fused_adam(params, grads, state.first, state.second, state.steps, lr)

    def fused_adam(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        steps: list[Tensor],
        lr: float | Tensor,
    ) -> None:
        """One Adam or AdamW update in place by torch's fused kernel."""
        update = adamw if self.optimizer == "adamw" else adam
        update(
            params,
            _laid_out_like(params, grads),
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )


def _laid_out_like(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients whose numbers lie in memory in the same order as their parameters'.

    The fused kernel walks over both as they lie in memory, whatever their strides say. A second derivative through a
    convolution comes back transposed, and would be applied to the wrong weights.
    """
    return [
        grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
        for param, grad in zip(params, grads, strict=True)
    ]
