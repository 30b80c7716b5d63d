"""Statistics of feature channels: FedFA's equations as pure functions, and which stages of a network they apply to.

Features are (rows, channels, positions...), or with `channel=-1` tokens (rows, tokens, channels). Equation numbers are
those of Zhou & Konukoglu, ICLR 2023. Nothing here draws or branches on values, so it runs under `vmap` and capture.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.fusion import fusable
from fewfed.network import Network

EPS = 1e-6
"""Added to every variance before its root: a dead channel then gives a finite value and a finite gradient."""

NOISE_FLOOR = 1e-12
"""A variance below this part of the mean square is rounding, not disagreement between clients."""


class StageOutput(NamedTuple):
    """What one stage hands on for a single input: the shape of its main path, and how many skips travel beside it."""

    shape: tuple[int, ...]
    skips: int


@lru_cache(maxsize=8)
def stage_outputs(net: Network, shape: tuple[int, ...]) -> dict[str, StageOutput]:
    """The output of every stage, found by passing one blank input."""
    model = net.model()
    x = torch.zeros(1, *shape, dtype=net.dtype)
    outputs: dict[str, StageOutput] = {}
    with torch.no_grad():
        for number, stage in enumerate(net.stages):
            x = net.apply(model, x, start=number, stop=number + 1, train=False)
            main, skips = (x[0], len(x) - 1) if isinstance(x, tuple) else (x, 0)
            outputs[stage] = StageOutput(tuple(main.shape[1:]), skips)
    return outputs


def spatial_stages(net: Network, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The leading stages, never the last, whose features have positions and which have not consumed a skip.

    AlexNet conv1 to conv5, LeNet-5 conv1, conv2, ResNet-18 stem and layer1 to layer4, U-Net encoder and bottleneck.
    """
    chosen: list[str] = []
    skips = 0
    for stage, output in stage_outputs(net, shape).items():
        if len(output.shape) < 2 or output.skips < skips or stage == net.stages[-1]:
            break
        chosen.append(stage)
        skips = output.skips
    return tuple(chosen)


def vector_width(net: Network, shape: tuple[int, ...], method: str) -> int:
    """Length of the feature vector the last stage, the classifier, works on."""
    width = stage_outputs(net, shape)[net.stages[-2]].shape if net.penultimate else shape
    if len(width) != 1:
        raise ConfigError(
            f"method '{method}' needs a feature vector before the classifier, but network '{net.name}' has features of "
            f"shape {tuple(width)} there: expected a network that pools or flattens first"
        )
    return width[0]


def channel_moments(x: Tensor, *, unbiased: bool = False, channel: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the positions of every row and channel, both (rows, channels) (Eq. 2)."""
    values = _wide(x) if x.dim() > 2 else _wide(x).unsqueeze(2)
    positions = [axis for axis in range(1, values.dim()) if axis != (channel % x.dim())]
    several = unbiased and has_positions(x, channel)
    variance, mean = torch.var_mean(values, positions, correction=1 if several else 0)
    return mean, (variance + EPS).sqrt()


def has_positions(x: Tensor, channel: int = 1) -> bool:
    """Whether a deviation over positions means anything."""
    return x[0].numel() > x.shape[channel]


def noise_scale(moments: Tensor, gamma: Tensor, *, unbiased: bool = False) -> Tensor:
    """Standard deviation of the noise on each channel: (gamma + 1) times the variance over the batch (Eq. 3 and 7).

    Moments are (..., rows, channels), gamma (..., channels).
    """
    several = unbiased and moments.shape[-2] > 1
    return ((gamma + 1) * (moments.var(-2, correction=1 if several else 0) + EPS)).sqrt()


@fusable
def feature_augmentation(
    x: Tensor,
    noise: Tensor,
    gamma_mean: Tensor,
    gamma_deviation: Tensor,
    *,
    fixed: float = 0.0,
    unbiased: bool = False,
    clamp: bool = False,
    detach: bool = False,
    channel: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Features with noisy channel statistics (Eq. 8 and 9), and their own mean and deviation before that.

    `noise` is (2, rows, channels), standard normal; `fixed` replaces the batch's spread by one number. Written as
    (1 + ratio) · x + (shift − ratio · mean), ratio = stretch/deviation, so that no noise is no change, bit for bit and
    in the gradient, and the features themselves are touched once: the rest is (rows, channels) in size.
    """
    mean, deviation = channel_moments(x, unbiased=unbiased, channel=channel)
    if len(x) < 2 and not fixed:
        return x, mean, deviation
    mu, sigma = (mean.detach(), deviation.detach()) if detach else (mean, deviation)
    if noise.shape[1] != len(x):
        noise = noise[:, _cycled(len(x), noise.shape[1], x.device)]
    if not has_positions(x, channel):
        shift = noise[0] * (fixed or noise_scale(mu, gamma_mean, unbiased=unbiased))
        return (_wide(x) + _like(shift, x, channel)).to(x.dtype), mean, deviation
    if fixed:
        shift, stretch = noise * fixed
    else:
        gammas = torch.stack([gamma_mean, gamma_deviation])
        shift, stretch = noise * noise_scale(torch.stack([mu, sigma]), gammas, unbiased=unbiased).unsqueeze(1)
    if clamp:
        stretch = torch.maximum(stretch, -sigma)
    ratio = stretch / sigma
    offset = torch.addcmul(shift, ratio, mu, value=-1)
    noisy = torch.addcmul(_like(offset, x, channel), _wide(x), _like(1 + ratio, x, channel))
    return noisy.to(x.dtype), mean, deviation


@fusable
def moving_average(old: Tensor, new: Tensor, rate: float, active: Tensor) -> Tensor:
    """rate · old + (1 − rate) · new where `active` (Eq. 4), else old untouched."""
    return torch.lerp(old, new.to(old.dtype), (1 - rate) * active.to(old.dtype))


def shared_variance(count: Tensor, total: Tensor, square: Tensor) -> Tensor:
    """Variance over clients from how many there are, the sum of their values and the sum of squares (Eq. 5)."""
    mean_square = square / count
    variance = mean_square - (total / count).square()
    return torch.where(variance > NOISE_FLOOR * mean_square, variance, torch.zeros_like(variance))


def normalised_gamma(variance: Tensor) -> Tensor:
    """gamma_c = C · r_c / Σ r with r = s/(1 + s) (Eq. 6); all ones where no channel differs between clients."""
    ratio = variance / (1 + variance)
    total = ratio.sum()
    return torch.where(total > 0, len(ratio) * ratio / torch.where(total > 0, total, 1.0), torch.ones_like(ratio))


def partners(order: Tensor, rows: int) -> Tensor:
    """A drawn permutation, cut or repeated for a pass over another number of rows than it was drawn for."""
    return order if len(order) == rows else order[_cycled(rows, len(order), order.device)] % rows


def _cycled(rows: int, drawn: int, device: torch.device) -> Tensor:
    return torch.arange(rows, device=device) % drawn


def _wide(x: Tensor) -> Tensor:
    """At least single precision: EPS vanishes in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _like(values: Tensor, x: Tensor, channel: int) -> Tensor:
    """(rows, channels) with ones for the positions of x."""
    shape = [1] * x.dim()
    shape[0], shape[channel] = values.shape
    return values.reshape(shape)
