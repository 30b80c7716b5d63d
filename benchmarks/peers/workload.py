"""The same clients, network and optimiser for every adapter, as plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from bare import Work
from torch import Tensor, nn

from fewfed import networks
from fewfed.network import Network
from peers.settings import Setting

Rows = tuple[Tensor, Tensor]


def client_maker(setting: Setting) -> Callable[[int], Rows]:
    """Clients made on demand, the same each time they are asked for."""

    def make(client: int) -> Rows:
        generator = torch.Generator().manual_seed(client)
        x = torch.randn(setting.rows, *setting.shape, generator=generator)
        return x, torch.randint(setting.classes, (setting.rows,), generator=generator)

    return make


def filled_maker(setting: Setting) -> Callable[[int], Rows]:
    """The same clients, filled up to whole batches with rows of their own, for peers that take a short last batch.

    The bare loop and fewfed fill up the last batch; so everybody takes the same steps on the same number of rows.
    """
    make = client_maker(setting)
    chosen = torch.arange(setting.rows_per_epoch) % setting.rows

    def filled(client: int) -> Rows:
        x, y = make(client)
        return (x, y) if len(chosen) == len(y) else (x[chosen], y[chosen])

    return filled


def network(setting: Setting) -> Network:
    """The network as fewfed takes it; its first weights are the same in every process."""
    if setting.network != "pfl-cnn":
        return networks.build(setting.network, setting.shape, setting.classes, 0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Network("pfl-cnn", _pfl_cnn(setting.shape, setting.classes), cut="conv1")


def module(setting: Setting) -> nn.Module:
    """The same network as an ordinary module."""
    net = network(setting)
    plain = nn.Sequential(*(net.module(stage) for stage in net.stages))
    for part in plain.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.num_batches_tracked = torch.zeros((), dtype=torch.long)  # As PyTorch makes it.
    return plain


def optimizer(setting: Setting, parameters: Iterable[nn.Parameter], lr: float | None = None) -> torch.optim.Optimizer:
    """A fresh local optimiser, as the bare loop makes it."""
    rate = setting.lr if lr is None else lr
    if setting.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, fused=True)
    return torch.optim.SGD(parameters, lr=rate)


def work(setting: Setting) -> Work:
    """The setting as `benchmarks/bare.py` takes it."""
    return Work(
        setting.name,
        lambda: module(setting),
        client_maker(setting),
        setting.batch,
        setting.epochs,
        setting.lr,
        setting.optimizer,
    )


def _pfl_cnn(shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
    """Two unpadded 3x3 convolutions, one pooling, one hidden layer of 128, dropout before both linear layers."""
    channels, height, width = shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return {
        "conv1": nn.Sequential(nn.Conv2d(channels, 32, 3), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        "hidden": nn.Sequential(nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5)),
        "head": nn.Linear(128, classes),
    }
