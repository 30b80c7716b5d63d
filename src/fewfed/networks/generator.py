"""Generators conditioned on a class: noise and a one-hot label in, an input or a penultimate feature out."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from fewfed.losses import one_hot
from fewfed.network import Network
from fewfed.networks.shapes import Shape

INPUT_NOISE = 100
LATENT_NOISE = 64

_NARROW = 4
"""Axes shorter than this (the axes of a motion sensor) are made in full from the start."""


def conditioned(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """What a generator reads: each row's noise followed by its one-hot label."""
    return torch.cat([noise, one_hot(y, classes)], -1)


@cache
def input_generator(shape: Shape, classes: int, seed: int, dtype: torch.dtype = torch.float32) -> Network:
    """A generator of inputs of `shape` from `INPUT_NOISE` numbers and a label.

    Square images: four transposed convolutions of 256, 128, 64 and as many channels as the image has, then BatchNorm
    without weights, since images are normalised. Other planes: a linear layer and four that double the plane. Other
    shapes: two hidden layers of 256.
    """
    inputs = INPUT_NOISE + classes
    with _seeded(seed):
        if len(shape) != 3:
            return Network("input-generator", _flat(inputs, shape)).to(dtype)
        channels, height, width = shape
        stages = (_square if height == width else _planes)(inputs, channels, height, width)
        return Network("input-generator", stages).to(dtype)


@cache
def latent_generator(shape: Shape, classes: int, seed: int, dtype: torch.dtype = torch.float32) -> Network:
    """A generator of penultimate features of `shape`: one hidden layer of 512 with BatchNorm, then linear."""
    with _seeded(seed):
        hidden = nn.Sequential(
            OrderedDict(linear=nn.Linear(LATENT_NOISE + classes, 512), norm=nn.BatchNorm1d(512), relu=nn.ReLU())
        )
        return Network("latent-generator", {"hidden": hidden, "out": _shaped(512, shape)}).to(dtype)


def _square(inputs: int, channels: int, height: int, width: int) -> dict[str, nn.Module]:
    sizes = [_halved((height, width), times) for times in (3, 2, 1, 0)]
    first = OrderedDict(
        column=nn.Unflatten(1, (inputs, 1, 1)),
        conv=nn.ConvTranspose2d(inputs, 256, sizes[0], bias=False),
        norm=nn.BatchNorm2d(256),
        relu=nn.ReLU(),
    )
    last = nn.Sequential(
        OrderedDict(conv=_doubling(64, channels, sizes[3], bias=True), norm=nn.BatchNorm2d(channels, affine=False))
    )
    return {
        "seed": nn.Sequential(first),
        "up1": _step(256, 128, sizes[1]),
        "up2": _step(128, 64, sizes[2]),
        "out": last,
    }


def _planes(inputs: int, channels: int, height: int, width: int) -> dict[str, nn.Module]:
    sizes = [_halved((height, width), times) for times in (4, 3, 2, 1, 0)]
    first = OrderedDict(
        linear=nn.Linear(inputs, 128 * math.prod(sizes[0])),
        plane=nn.Unflatten(1, (128, *sizes[0])),
        norm=nn.BatchNorm2d(128),
        relu=nn.ReLU(),
    )
    return {
        "seed": nn.Sequential(first),
        "up1": _step(128, 64, sizes[1]),
        "up2": _step(64, 32, sizes[2]),
        "up3": _step(32, 16, sizes[3]),
        "out": _doubling(16, channels, sizes[4], bias=True),
    }


def _flat(inputs: int, shape: Shape) -> dict[str, nn.Module]:
    def hidden(before: int) -> nn.Sequential:
        return nn.Sequential(OrderedDict(linear=nn.Linear(before, 256), norm=nn.BatchNorm1d(256), relu=nn.ReLU()))

    return {"hidden1": hidden(inputs), "hidden2": hidden(256), "out": _shaped(256, shape)}


def _shaped(inputs: int, shape: Shape) -> nn.Sequential:
    return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, math.prod(shape)), shape=nn.Unflatten(1, tuple(shape))))


def _step(inputs: int, outputs: int, size: tuple[int, int]) -> nn.Sequential:
    conv = _doubling(inputs, outputs, size, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs), relu=nn.ReLU()))


def _halved(size: tuple[int, int], times: int) -> tuple[int, int]:
    """The plane that `times` doublings bring to `size`, rounded up each time."""
    for _ in range(times):
        size = tuple(side if side < _NARROW else -(-side // 2) for side in size)  # type: ignore[assignment]
    return size


def _doubling(inputs: int, outputs: int, size: tuple[int, int], bias: bool) -> nn.ConvTranspose2d:
    """A transposed convolution onto `size` from its halved plane: kernel 4 doubles, 3 doubles less one, 1 keeps."""
    narrow = [side < _NARROW for side in size]
    kernel = tuple(1 if keep else 4 - side % 2 for side, keep in zip(size, narrow, strict=True))
    stride, padding = tuple(1 if keep else 2 for keep in narrow), tuple(0 if keep else 1 for keep in narrow)
    return nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, bias=bias)  # type: ignore[arg-type]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Weights made inside depend on the seed alone and leave torch's own stream as it was."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
