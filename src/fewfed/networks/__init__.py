"""The networks of the papers and a few small ones, by name, and a user's own from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError, did_you_mean
from fewfed.network import Network
from fewfed.networks import (
    alexnet,
    audionet,
    digits_cnn,
    from_file,
    harnet,
    lenet5,
    mcmahan_cnn,
    mlp,
    mobilenetv2,
    resnet9,
    resnet18,
    small_cnn,
    unet,
)
from fewfed.networks.group_norm import SUFFIX, with_group_norm
from fewfed.networks.shapes import Accepts, Shape

__all__ = ["build", "default_for", "forms", "names"]


class _Entry(NamedTuple):
    make: Callable[[Shape, int], Network]
    shapes: Accepts


_NETWORKS: Mapping[str, _Entry] = MappingProxyType(
    {
        "mobilenetv2": _Entry(mobilenetv2.mobilenetv2, mobilenetv2.SHAPES),
        "audionet": _Entry(audionet.audionet, audionet.SHAPES),
        "harnet": _Entry(harnet.harnet, harnet.SHAPES),
        "lenet5": _Entry(lenet5.lenet5, lenet5.SHAPES),
        "lenet5-tanh": _Entry(lenet5.lenet5_tanh, lenet5.SHAPES),
        "mcmahan-cnn": _Entry(mcmahan_cnn.mcmahan_cnn, mcmahan_cnn.SHAPES),
        "resnet9": _Entry(resnet9.resnet9, resnet9.SHAPES),
        "resnet9-dropout": _Entry(resnet9.resnet9_dropout, resnet9.SHAPES),
        "resnet9-wide": _Entry(resnet9.resnet9_wide, resnet9.SHAPES),
        "resnet18": _Entry(resnet18.resnet18, resnet18.SHAPES),
        "resnet18-7x7": _Entry(resnet18.resnet18_7x7, resnet18.SHAPES),
        "alexnet": _Entry(alexnet.alexnet, alexnet.SHAPES),
        "alexnet-fedbn": _Entry(alexnet.alexnet_fedbn, alexnet.SHAPES),
        "unet": _Entry(unet.unet, unet.SHAPES),
        "unet-small": _Entry(unet.unet_small, unet.SHAPES),
        "small-cnn": _Entry(small_cnn.small_cnn, small_cnn.SHAPES),
        "digits-cnn": _Entry(digits_cnn.digits_cnn, digits_cnn.SHAPES),
        "mlp": _Entry(mlp.mlp, mlp.SHAPES),
    }
)

_BATCH_NORM = (
    *("mobilenetv2", "audionet", "harnet", "resnet9", "resnet9-dropout", "resnet9-wide", "resnet18", "resnet18-7x7"),
    *("alexnet", "alexnet-fedbn", "unet", "unet-small", "small-cnn", "digits-cnn"),
)
"""Those with BatchNorm, of which there is a variant with GroupNorm: `harnet-gn`."""

_OF_DATA: Mapping[str, str] = MappingProxyType(
    {
        "cifar10": "mobilenetv2",
        "cifar100": "mobilenetv2",
        "urbansound8k": "audionet",
        "har": "harnet",
        "mnist": "lenet5",
        "fashion-mnist": "lenet5",
        "digits": "digits-cnn",
        "office": "alexnet",
    }
)


def names() -> tuple[str, ...]:
    """Every network that `build` knows."""
    return (*_NETWORKS, *(f"{name}{SUFFIX}" for name in _BATCH_NORM))


def build(name: str, shape: Shape, classes: int, seed: int, example: Tensor | None = None) -> Network:
    """A network for inputs of `shape` whose first weights depend on the seed alone.

    `name` may be a user's file, as in `net.py:build`; `example` is then a few inputs to find its stages with.
    """
    own = from_file.named_in(name)
    if own is not None:
        return from_file.build(own, tuple(shape), classes, seed, example)
    if name not in names():
        raise ConfigError(_unknown(name))
    if classes < 2:
        raise ConfigError(f"network '{name}' was asked for {classes} classes: expected at least 2")
    # `torch.manual_seed` would reseed the accelerators as well, which `fork_rng` does not restore here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return _made(name, tuple(shape), classes)


def forms(name: str, shape: Shape, classes: int) -> dict[str, tuple[int, ...]]:
    """The shape of everything in a model of a network by name, found out without taking memory for it."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        made = _made(name, tuple(shape), classes)
        return {path: tuple(leaf.shape) for path, leaf in tree.leaves(made.model())}


def _made(name: str, shape: Shape, classes: int) -> Network:
    if name in _NETWORKS:
        return _NETWORKS[name].make(shape, classes)
    return with_group_norm(_NETWORKS[name.removesuffix(SUFFIX)].make(shape, classes))


def _unknown(name: str) -> str:
    """What to say of a name that is nobody's."""
    if (plain := name.removesuffix(SUFFIX)) != name and plain in _NETWORKS:
        return f"network '{plain}' has no BatchNorm that GroupNorm could stand for: expected '{plain}'"
    return did_you_mean("network", name, names()) + _own(name)


def _own(name: str) -> str:
    """What else to say where a name was meant as somebody's own."""
    return " (one of your own is named as path/to/net.py:build)" if {"/", ":", "."} & set(name) else ""


def default_for(data_name: str, shape: Shape) -> str:
    """The network the papers use on this data; for other data, or other sizes of it, one that fits the shape."""
    papers = _OF_DATA.get(data_name)
    if papers is not None and _NETWORKS[papers].shapes.admits(shape):
        return papers
    if _is_sensor_window(shape):
        return "harnet"
    if small_cnn.SHAPES.admits(shape) and shape[1:] != (8, 8):
        return "small-cnn"
    return "digits-cnn" if digits_cnn.SHAPES.admits(shape) else "mlp"


def _is_sensor_window(shape: Shape) -> bool:
    """One plane of many time steps by a few axes: long and narrow in a way images are not."""
    return harnet.SHAPES.admits(shape) and shape[0] == 1 and shape[1] >= 4 * shape[2]
