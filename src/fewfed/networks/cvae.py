"""Auxiliary autoencoders: FLAIR's conditional one over features and a plain one over inputs.

Both are networks of stages cut at `latent`: what comes before is the encoder and gives mean and log-variance side by
side, what follows is the decoder. All randomness is drawn by the caller.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from fewfed.network import Network
from fewfed.tree import Tree

Norm = Literal["batch", "layer"]


@lru_cache(maxsize=8)
def cvae(
    features: int, classes: int, hidden: int, latent: int, norm: Norm, seed: int, dtype: torch.dtype = torch.float32
) -> Network:
    """Two hidden layers with normalisation each way, conditioned on one-hot labels; the output is linear.

    Widths (256, 64) on 512 features and 10 classes have 451,200 parameters, (64, 16) on 84 features 24,180.
    """

    def layer(inputs: int) -> nn.Sequential:
        norms = nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden)
        return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, hidden), norm=norms, relu=nn.ReLU()))

    def make() -> Network:
        stages: dict[str, nn.Module] = {
            "encode1": layer(features + classes),
            "encode2": layer(hidden),
            "latent": nn.Linear(hidden, 2 * latent),
            "decode1": layer(latent + classes),
            "decode2": layer(hidden),
            "output": nn.Linear(hidden, features),
        }
        return Network("cvae", stages, cut="latent")

    return _seeded(make, seed).to(dtype)


@lru_cache(maxsize=8)
def vae(shape: tuple[int, ...], hidden: int, latent: int, seed: int, dtype: torch.dtype = torch.float32) -> Network:
    """One hidden layer each way over flattened inputs; the output has the shape of the input."""
    size = math.prod(shape)

    def make() -> Network:
        stages: dict[str, nn.Module] = {
            "encode": nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(size, hidden), relu=nn.ReLU())),
            "latent": nn.Linear(hidden, 2 * latent),
            "decode": nn.Sequential(OrderedDict(linear=nn.Linear(latent, hidden), relu=nn.ReLU())),
            "output": nn.Sequential(OrderedDict(linear=nn.Linear(hidden, size), shape=nn.Unflatten(1, shape))),
        }
        return Network("vae", stages, cut="latent")

    return _seeded(make, seed).to(dtype)


def encode(net: Network, model: Tree, x: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of the code; a conditional net takes its labels appended to x."""
    mean, log_variance = net.apply(model, x, stop=net.position("latent"), train=train).chunk(2, dim=1)
    return mean, log_variance


def decode(net: Network, model: Tree, z: Tensor, *, train: bool) -> Tensor:
    """What a code stands for; a conditional net takes its labels appended to z."""
    decoded: Tensor = net.apply(model, z, start=net.position("latent"), train=train)
    return decoded


def sample(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """A code from standard normal noise."""
    return mean + (log_variance / 2).exp() * noise


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, diag exp(log_variance)) ‖ N(0, I)) of every row."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)


def _seeded(make: Callable[[], Network], seed: int) -> Network:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return make()
