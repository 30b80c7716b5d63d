"""What a tutorial writes: local training of one client after another in eager PyTorch, for five methods.

`nn.Module`, `backward()`, `torch.optim`, and what each method adds, in the plainest form that computes the same; with
Python's `random` where that spares work (a stage FedFA does not augment in a step costs nothing here). It uses no code
of fewfed but the networks' layers.
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, one_hot, softmax

Step = Callable[[Tensor, Tensor], Tensor]
"""The loss of a batch."""


class FeatureAugmentation(nn.Module):
    """FedFA's layer (Eq. 2 to 9), with momentum averages of the statistics."""

    def __init__(self, channels: int, momentum: float = 0.99, p: float = 0.5) -> None:
        super().__init__()
        self.momentum, self.p = momentum, p
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))
        self.register_buffer("gamma_mean", torch.ones(channels))
        self.register_buffer("gamma_deviation", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or random.random() >= self.p:
            return x
        mean = x.mean((2, 3), keepdim=True)
        deviation = (x.var((2, 3), keepdim=True, correction=0) + 1e-6).sqrt()
        with torch.no_grad():
            self.mean.lerp_(mean.mean((0, 2, 3)), 1 - self.momentum)
            self.deviation.lerp_(deviation.mean((0, 2, 3)), 1 - self.momentum)
        spread_mean = ((self.gamma_mean + 1) * (mean.var(0, correction=0).flatten() + 1e-6)).sqrt()
        spread_deviation = ((self.gamma_deviation + 1) * (deviation.var(0, correction=0).flatten() + 1e-6)).sqrt()
        new_mean = mean + torch.randn_like(mean) * spread_mean.view(1, -1, 1, 1)
        new_deviation = deviation + torch.randn_like(deviation) * spread_deviation.view(1, -1, 1, 1)
        return (x - mean) / deviation * new_deviation + new_mean


def augmented(stages: Sequence[nn.Module], shape: tuple[int, ...]) -> list[nn.Module]:
    """The stages with FedFA's layer after each that still has positions, the last one excepted."""
    layers: list[nn.Module] = []
    x = torch.zeros(2, *shape)
    for number, stage in enumerate(stages):
        x = stage(x)
        layers.append(stage)
        if x.dim() == 4 and number < len(stages) - 1:
            layers.append(FeatureAugmentation(x.shape[1]))
    return layers


def distance_correlation(x: Tensor, f: Tensor) -> Tensor:
    """Of a batch's inputs and features, as FLea penalises it."""

    def centred(values: Tensor) -> Tensor:
        flat = values.flatten(1)
        squares = (flat * flat).sum(1)
        distances = (squares[:, None] + squares[None] - 2 * flat @ flat.T).clamp(min=1e-7).sqrt()
        return distances - distances.mean(0, keepdim=True) - distances.mean(1, keepdim=True) + distances.mean()

    a, b = centred(x), centred(f)
    return ((a * b).mean().clamp(min=1e-7) / ((a * a).mean() * (b * b).mean()).sqrt()).sqrt()


def fedavg(model: nn.Sequential, shape: tuple[int, ...], classes: int, cut: int) -> Step:
    return lambda x, y: cross_entropy(model(x), y)


def fedntd(model: nn.Sequential, shape: tuple[int, ...], classes: int, cut: int) -> Step:
    teacher = copy.deepcopy(model).eval()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        output = model(x)
        with torch.no_grad():
            known = teacher(x)
        true = one_hot(y, classes).bool()
        student = output[~true].view(len(x), classes - 1)
        taught = known[~true].view(len(x), classes - 1)
        return cross_entropy(output, y) + kl_div(log_softmax(student, 1), softmax(taught, 1), reduction="batchmean")

    return loss


def flea(model: nn.Sequential, shape: tuple[int, ...], classes: int, cut: int) -> Step:
    teacher = copy.deepcopy(model).eval()
    device = next(model.parameters()).device
    beta = torch.distributions.Beta(2.0, 2.0)
    with torch.no_grad():
        features = teacher[:cut](torch.randn(256, *shape, device=device))
    labels = torch.randint(classes, (256,), device=device)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        own = model[:cut](x)
        relation = distance_correlation(x, own)
        rows = torch.randint(256, (len(x),)).to(device)
        weight = beta.sample((len(x),)).to(device)
        shaped = weight.view(-1, *([1] * (own.dim() - 1)))
        mixed = shaped * own + (1 - shaped) * features[rows]
        target = weight[:, None] * one_hot(y, classes) + (1 - weight[:, None]) * one_hot(labels[rows], classes)
        output = model[cut:](mixed)
        with torch.no_grad():
            known = teacher[cut:](mixed)
        distil = kl_div(log_softmax(output, 1), softmax(known, 1), reduction="batchmean")
        return -(target * log_softmax(output, 1)).sum(1).mean() + distil + 3.0 * relation

    return loss


METHODS: dict[str, Callable[..., Step]] = {
    "fedavg": fedavg, "fedntd": fedntd, "flea": flea, "fedfa": fedavg, "scaffold": fedavg,
}  # fmt: skip


def step_seconds(
    method: str, stages: Sequence[nn.Module], shape: tuple[int, ...], classes: int, cut: int, device: str,
    *, clients: int, rows: int, batch: int, epochs: int,
) -> float:  # fmt: skip
    """Seconds a step, the median of some clients, warm. `cut`: how many stages come before the features FLea shares."""
    layers = augmented(stages, shape) if method == "fedfa" else list(stages)
    model = as_pytorch_makes_it(nn.Sequential(*layers)).to(device).train()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    loss = METHODS[method](model, shape, classes, cut)
    controls = [torch.zeros_like(p) for p in model.parameters()] if method == "scaffold" else []
    x, y = torch.randn(rows, *shape, device=device), torch.randint(classes, (rows,), device=device)

    def turn() -> int:
        model.load_state_dict(start)
        optimizer: Any
        if method == "scaffold":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        steps = 0
        for _ in range(epochs):
            order = torch.randperm(rows).to(device)
            for first in range(0, rows, batch):
                chosen = order[first : first + batch]
                optimizer.zero_grad()
                loss(x[chosen], y[chosen]).backward()
                if controls:
                    for p, own, shared in zip(model.parameters(), controls, controls, strict=True):
                        p.grad.add_(shared - own)
                optimizer.step()
                steps += 1
        return steps

    return median_seconds(turn, clients, device)


def as_pytorch_makes_it(model: nn.Sequential) -> nn.Sequential:
    """A model whose BatchNorm layers count batches."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.num_batches_tracked = torch.zeros((), dtype=torch.long)
    return model


def median_seconds(turn: Callable[[], int], clients: int, device: str) -> float:
    """Seconds a step over several turns, after one that counts for nothing; a turn says how many steps it took."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    turn()
    times = []
    for _ in range(clients):
        wait()
        began = time.perf_counter()
        steps = turn()
        wait()
        times.append((time.perf_counter() - began) / steps)
    return statistics.median(times)
