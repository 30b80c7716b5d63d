"""Inputs whose gradient looks like one that was sent.

Geiping et al., Inverting Gradients, NeurIPS 2020: the cosine of the angle between the two gradients, and for pictures
little total variation. Where the first layer is linear and the batch a single row, the row is read off exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.privacy.attacks.one_step import OneStep

VARIATION = 0.005
"""Weight of the total variation, the mean over pixels."""
_RATE = 0.1
"""Of the range of the inputs, in the first step; it falls to nothing."""
_SOFT = 0.05
"""Where only signs are known: gradients below this part of a layer's size count as between -1 and 1."""


def read_off(step: OneStep, shape: tuple[int, ...]) -> Tensor | None:
    """The only row of a batch, where the first layer is linear and has a bias: of each unit the gradient of the weights
    is the input times that of the bias. None where that does not hold."""
    name = next(iter(step.start["params"]))
    bias = step.gradient.get(name.removesuffix("weight") + "bias")
    weight = step.gradient.get(name)
    if step.rows != 1 or step.is_signs or weight is None or bias is None or weight.dim() != 2:
        return None
    unit = int(bias.abs().argmax())
    if weight.shape[1] != math.prod(shape) or not float(bias[unit]):
        return None
    return (weight[unit] / bias[unit]).reshape(1, *shape)


def matched(
    job: Job, step: OneStep, labels: Tensor, like: Tensor, *, steps: int, restarts: int, seed: int, device: torch.device
) -> Tensor:
    """Rows with these labels whose gradient points where the client's does, within the range of `like`: rows of the
    same kind. Of several beginnings the one that comes nearest."""
    low, high = float(like.min()), float(like.max())
    random = torch.Generator().manual_seed(seed)
    target = {name: value.to(device, job.net.dtype) for name, value in step.gradient.items()}
    model = tree.to(tree.clone(step.start), device)
    for leaf in model["params"].values():
        leaf.requires_grad_(True)

    def distance(x: Tensor) -> Tensor:
        said = job.net.apply(model, x)
        loss = job.task.loss(said[0] if isinstance(said, tuple) else said, labels.to(device))
        chosen = [model["params"][name] for name in target]
        found = torch.autograd.grad(loss, chosen, create_graph=True, allow_unused=True, materialize_grads=True)
        return angle([_signed(each) if step.is_signs else each for each in found], list(target.values()))

    tried = []
    for _ in range(restarts):
        start = low + (high - low) * (0.5 + 0.3 * torch.randn((step.rows, *like.shape[1:]), generator=random))
        end = _followed(
            lambda x: distance(x) + VARIATION * variation(x) / (high - low), start.to(device, job.net.dtype), low, high,
            steps,
        )  # fmt: skip
        tried.append((float(distance(end).detach()), end))
    return min(tried, key=lambda each: each[0])[1].cpu()


def _followed(objective: Callable[[Tensor], Tensor], start: Tensor, low: float, high: float, steps: int) -> Tensor:
    """Where Adam on the signs of the gradient leads inside a box: far better here than the gradient itself, whose
    pixels differ by orders of magnitude."""
    x = start.clamp(low, high).requires_grad_(True)
    optimizer = torch.optim.Adam([x], lr=_RATE * (high - low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with one_thread():
        for _ in range(steps):
            (gradient,) = torch.autograd.grad(objective(x), [x])
            x.grad = gradient.sign()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(low, high)
    return x.detach()


def angle(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """One minus the cosine between two gradients as single vectors."""
    dot = torch.stack([(a * b).sum() for a, b in zip(ours, theirs, strict=True)]).sum()
    sizes = [torch.stack([each.square().sum() for each in side]).sum() for side in (ours, theirs)]
    return 1 - dot / (sizes[0] * sizes[1]).clamp(min=1e-30).sqrt()


def variation(x: Tensor) -> Tensor:
    """The mean step between neighbouring pixels; nothing for rows that are no pictures."""
    if x.dim() != 4:
        return x.new_zeros(())
    down, right = (x[:, :, 1:] - x[:, :, :-1]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    return sum((each.mean() for each in (down, right) if each.numel()), x.new_zeros(()))


def _signed(gradient: Tensor) -> Tensor:
    size = gradient.detach().square().mean().sqrt().clamp(min=1e-30)
    return gradient / (gradient.square() + (_SOFT * size) ** 2).sqrt()
