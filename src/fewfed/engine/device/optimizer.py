"""The optimisers of `fewfed.optim` for captured steps: rates and step counts are tensors, clients may be stacked.

A stack has its clients on the first axis; norms and step counts are per client, and a client that is not `active` in a
step keeps its parameters and its memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.optim import Optimizer


class DeviceOptimizer:
    """Memory for one lane's parameters, updated in place."""

    def __init__(self, settings: Optimizer, params: list[Tensor], width: int) -> None:
        self._settings = settings
        self._width = width
        self._params = params
        self.first = [torch.zeros_like(p) for p in params] if self._keeps_first else []
        self.second = [torch.zeros_like(p) for p in params] if settings.optimizer != "sgd" else []
        device = params[0].device if params else torch.device("cpu")
        self.steps = torch.zeros(width, dtype=params[0].dtype if params else None, device=device)
        self._counts = [torch.zeros((), device=device) for _ in self.second]

    @property
    def _keeps_first(self) -> bool:
        return self._settings.optimizer != "sgd" or self._settings.momentum > 0

    def reset(self) -> None:
        """Forget everything, as at the start of a turn."""
        tensors = [*self.first, *self.second, self.steps, *self._counts]
        torch._foreach_zero_(tensors)

    def step(self, grads: list[Tensor], lr: Tensor, active: Tensor | None) -> None:
        """One update; `lr` is a scalar tensor, `active` one flag a client or None where all are."""
        settings = self._settings
        params = self._params
        if not params:
            return
        with torch.no_grad():
            if settings.clip > 0:
                grads = self._clipped(grads)
            if active is None and settings.optimizer != "sgd":
                # One kernel, where all clients of the stack have taken the same number of steps.
                settings.fused_adam(params, grads, self.first, self.second, self._counts, lr)
                if settings.reset == "step":
                    self.reset()
                return
            if settings.weight_decay and settings.optimizer != "adamw":
                grads = list(torch._foreach_add(grads, params, alpha=settings.weight_decay))
            before = [t.clone() for t in (*params, *self.first, *self.second)] if active is not None else []
            self.steps.add_(1 if active is None else active)
            if settings.optimizer == "sgd":
                self._sgd(grads, lr)
            else:
                self._adam(grads, lr)
            if settings.reset == "step":
                self.reset()
            if active is not None:
                for now, old in zip((*params, *self.first, *self.second), before, strict=True):
                    now.copy_(torch.where(self._along(active, now), now, old))

    def _sgd(self, grads: list[Tensor], lr: Tensor) -> None:
        settings = self._settings
        if settings.momentum > 0:
            torch._foreach_mul_(self.first, settings.momentum)
            torch._foreach_add_(self.first, grads)
            grads = self.first
        torch._foreach_add_(self._params, torch._foreach_mul(grads, -lr))

    def _adam(self, grads: list[Tensor], lr: Tensor) -> None:
        settings = self._settings
        if settings.optimizer == "adamw" and settings.weight_decay:
            torch._foreach_mul_(self._params, 1 - lr * settings.weight_decay)
        torch._foreach_lerp_(self.first, grads, 1 - settings.beta1)
        torch._foreach_mul_(self.second, settings.beta2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - settings.beta2)
        scale = lr / (1 - settings.beta1**self.steps)
        root = (1 - settings.beta2**self.steps).sqrt()
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_div_(roots, [self._along(root, p) for p in self._params])
        torch._foreach_add_(roots, settings.eps)
        torch._foreach_div_(roots, [self._along(-scale, p) for p in self._params])
        torch._foreach_addcdiv_(self._params, self.first, roots)

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        if self._width == 1:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads])).reshape(1)
        else:
            norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factor = (self._settings.clip / (norm + 1e-6)).clamp(max=1.0)
        return [g * self._along(factor, g) for g in grads]

    def _along(self, values: Tensor, like: Tensor) -> Tensor:
        """One value a client, shaped to multiply a parameter of the lane."""
        return values.reshape(()) if self._width == 1 else values.reshape(-1, *([1] * (like.dim() - 1)))
