"""The local optimisers, for one client or for a stack of clients. All executors use them.

In a stack, clients are the first axis of every parameter. Each client has its own gradient norm and step count, and a
client that is not `active` in a step keeps its parameters and moments. For one client, torch's own functions are used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fewfed.torch_private import (
    adam,
    adamw,
    foreach_add,
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_div_,
    foreach_lerp_,
    foreach_mul,
    foreach_mul_,
    foreach_sqrt,
    foreach_zero_,
)
from fewfed.training import Optimizer
from fewfed.tree import Tree


class LocalOptimizer:
    """Updates parameters in place, and remembers what the next update needs."""

    def __init__(self, settings: Optimizer, params: list[Tensor], width: int = 1) -> None:
        """`width`: how many clients the parameters belong to; more than one are stacked."""
        self._settings = settings
        self._params = params
        self._width = width
        self._has_first = settings.optimizer != "sgd" or settings.momentum > 0
        self._first = [torch.zeros_like(p) for p in params] if self._has_first else []
        self._second = [torch.zeros_like(p) for p in params] if settings.optimizer != "sgd" else []
        device = params[0].device if params else torch.device("cpu")
        self._counts = [torch.zeros((), device=device) for _ in self._second]
        # Where clients of a stack have taken different numbers of steps.
        self._steps = torch.zeros(width, dtype=params[0].dtype if params else None, device=device)

    def reset(self) -> None:
        """Forget everything, as at the start of a client's turn."""
        if remembered := [*self._first, *self._second, *self._counts, self._steps]:
            foreach_zero_(remembered)

    def moments(self, names: Sequence[str]) -> Tree:
        """What the next update of one client needs, by the names of its parameters; nothing for plain SGD."""
        return {part: dict(zip(names, values, strict=True)) for part, values in self._parts().items() if values}

    def recall(self, names: Sequence[str], moments: Tree) -> None:
        """Go on from the moments of an earlier turn. Parameters that it did not have, as they are now, start anew."""
        known = moments.get("first", {})
        for part, values in self._parts().items():
            for name, value, param in zip(names, values, self._params, strict=False):
                if name in known and known[name].shape == param.shape:
                    value.copy_(moments[part][name])

    def _parts(self) -> dict[str, list[Tensor]]:
        return {"first": self._first, "second": self._second, "count": self._counts}

    def step(self, grads: list[Tensor], lr: float | Tensor, active: Tensor | None = None) -> None:
        """One update. A recorded step has `lr` as a tensor, which can change; `active`: one flag a client."""
        if not self._params:
            return
        settings = self._settings
        with torch.no_grad():
            if settings.clip > 0:
                grads = self._clipped(grads)
            if active is not None:
                self._step_of_some(grads, lr, active)
            elif settings.optimizer == "sgd":
                self._sgd(self._decayed(grads), lr)
            else:
                self._fused_adam(grads, lr)
            if settings.reset == "step":
                self.reset()

    def _step_of_some(self, grads: list[Tensor], lr: float | Tensor, active: Tensor) -> None:
        everything = [*self._params, *self._first, *self._second]
        before = [t.clone() for t in everything]
        self._steps.add_(active)
        if self._settings.optimizer == "sgd":
            self._sgd(self._decayed(grads), lr)
        else:
            self._adam(grads if self._settings.optimizer == "adamw" else self._decayed(grads), lr)
        for now, old in zip(everything, before, strict=True):
            now.copy_(torch.where(self._along(active, now), now, old))

    def _decayed(self, grads: list[Tensor]) -> list[Tensor]:
        decay = self._settings.weight_decay
        return list(foreach_add(grads, self._params, alpha=decay)) if decay else grads

    def _sgd(self, grads: list[Tensor], lr: float | Tensor) -> None:
        if self._settings.momentum > 0:
            foreach_mul_(self._first, self._settings.momentum)
            foreach_add_(self._first, grads)
            grads = self._first
        if isinstance(lr, Tensor):
            foreach_add_(self._params, foreach_mul(grads, -lr))
        else:
            foreach_add_(self._params, grads, alpha=-lr)

    def _fused_adam(self, grads: list[Tensor], lr: float | Tensor) -> None:
        """By torch's fused kernel, one for all parameters; all clients of a stack have taken as many steps."""
        settings = self._settings
        update = adamw if settings.optimizer == "adamw" else adam
        update(
            self._params,
            _laid_out_like(self._params, grads),
            self._first,
            self._second,
            [],
            self._counts,
            fused=True,
            amsgrad=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            lr=lr,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            maximize=False,
        )

    def _adam(self, grads: list[Tensor], lr: float | Tensor) -> None:
        settings = self._settings
        if settings.optimizer == "adamw" and settings.weight_decay:
            foreach_mul_(self._params, 1 - lr * settings.weight_decay)
        foreach_lerp_(self._first, grads, 1 - settings.beta1)
        foreach_mul_(self._second, settings.beta2)
        foreach_addcmul_(self._second, grads, grads, 1 - settings.beta2)
        scale = lr / (1 - settings.beta1**self._steps)
        root = (1 - settings.beta2**self._steps).sqrt()
        roots = foreach_sqrt(self._second)
        foreach_div_(roots, [self._along(root, p) for p in self._params])
        foreach_add_(roots, settings.eps)
        foreach_div_(roots, [self._along(-scale, p) for p in self._params])
        foreach_addcdiv_(self._params, self._first, roots)

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        if self._width == 1:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads])).reshape(1)
        else:
            norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factor = (self._settings.clip / (norm + 1e-6)).clamp(max=1.0)
        return [g * self._along(factor, g) for g in grads]

    def _along(self, values: Tensor, like: Tensor) -> Tensor:
        """One value a client, shaped to multiply a parameter."""
        return values.reshape(()) if self._width == 1 else values.reshape(-1, *([1] * (like.dim() - 1)))


def _laid_out_like(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Copy gradients into the memory order of their parameters where it differs.

    The fused kernel ignores strides and reads both in the order of memory. Second derivatives of convolutions come
    back transposed, and would otherwise be applied to the wrong weights.
    """
    return [
        grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
        for param, grad in zip(params, grads, strict=True)
    ]
