"""Networks that turn what was sent back into inputs. They take and give flat rows, and know both shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewfed.network import Network

Shape = tuple[int, ...]
_PAPERS_WIDTH = 32
_HIDDEN = 512
_LEAST_SIDE = 8


class Made(Protocol):
    """How a decoder is made."""

    def __call__(self, sent: Shape, shape: Shape) -> nn.Module: ...


def is_picture(shape: Shape) -> bool:
    """Whether inputs are planes on which one can look at neighbourhoods: channels first, no side below eight."""
    return len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE


def is_plane(shape: Shape) -> bool:
    """Whether a shape has places: channels first, then at least two of them along a side."""
    return len(shape) == 3 and max(shape[1:]) > 1


def network(name: str, make: Callable[[], nn.Module], seed: int) -> Network:
    """A network of one stage whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return Network(name, {"whole": make()})


def minimal(sent: Shape, shape: Shape) -> nn.Module:
    """The published decoder (Xia et al. 2024), without activations: a linear map of few parameters.

    Published for features with as many places as the input has. Where they have fewer, the plane is doubled more often,
    and brought to the input's size at the end; where either has no places, it is one linear layer.
    """
    if not (is_plane(sent) and is_plane(shape)):
        return nn.Linear(math.prod(sent), math.prod(shape))
    width = _PAPERS_WIDTH
    layers: list[nn.Module] = [nn.Unflatten(1, sent), nn.Conv2d(sent[0], width, 1), _growing(width, (2, 2))]
    size = list(sent[1:])
    while any(side < wanted for side, wanted in zip(size, shape[1:], strict=True)):
        strides = [2 if side < wanted else 1 for side, wanted in zip(size, shape[1:], strict=True)]
        layers.append(_growing(width, (strides[0], strides[1])))
        size = [side * stride for side, stride in zip(size, strides, strict=True)]
    layers += [nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(width, shape[0], 1)]
    if tuple(size) != shape[1:]:
        layers.append(nn.Upsample(shape[1:], mode="bilinear"))
    return nn.Sequential(*layers, nn.Flatten())


def _growing(width: int, stride: tuple[int, int]) -> nn.Module:
    """A transposed convolution that makes a plane so many times as long and wide."""
    return nn.ConvTranspose2d(width, width, 3, stride, 1, output_padding=(stride[0] - 1, stride[1] - 1))


class Refiner(nn.Module):
    """Reads a row that was sent and a first guess at its input, and says what is still to be added to the guess.

    Convolutions where inputs have places, else dense layers. The last layer begins with zeros, so that what comes out
    of training on few rows is never far worse than the guess.
    """

    def __init__(self, sent: Shape, shape: Shape, width: int = 24, blocks: int = 2) -> None:
        super().__init__()
        self._sent, self._shape = sent, shape
        self.first: nn.Module
        self.body: nn.Module
        last: nn.Linear | nn.Conv2d
        if not is_plane(shape):
            self.first = nn.Identity()
            last = nn.Linear(_HIDDEN, math.prod(shape))
            dense = [nn.Linear(math.prod(sent) + math.prod(shape), _HIDDEN), nn.ReLU()]
            self.body = nn.Sequential(*dense, nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), last)
        else:
            self.first = _placed(sent, shape, width)
            last = nn.Conv2d(width, shape[0], 3, padding=1)
            convolutions = [nn.Conv2d(width + shape[0], width, 3, padding=1), nn.ReLU()]
            self.body = nn.Sequential(*convolutions, *(_Residual(width) for _ in range(blocks)), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, packed: Tensor) -> Tensor:
        if not is_plane(self._shape):
            found: Tensor = self.body(packed)
            return found
        sent, guess = torch.split(packed, [math.prod(self._sent), math.prod(self._shape)], 1)
        planes = self.first(sent)
        if planes.shape[2:] != self._shape[1:]:
            planes = functional.interpolate(planes, self._shape[1:], mode="nearest")
        return torch.flatten(self.body(torch.cat([planes, guess.reshape(-1, *self._shape)], 1)), 1)


def refining(sent: Shape, shape: Shape) -> nn.Module:
    """The strong decoder."""
    return Refiner(sent, shape)


def encoder(shape: Shape, sent: Shape, positive: bool) -> nn.Module:
    """A network that gives out what somebody else's might: rows of that shape, none below 0 where `positive`."""
    ends: list[nn.Module] = [nn.ReLU()] if positive else []
    if is_plane(shape) and is_plane(sent):
        width = max(_PAPERS_WIDTH, sent[0])
        convolutions = [nn.Conv2d(shape[0], width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(sent[1:])]
        return nn.Sequential(
            nn.Unflatten(1, shape), *convolutions, nn.Conv2d(width, sent[0], 3, padding=1), *ends, nn.Flatten()
        )
    dense = [nn.Linear(math.prod(shape), _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, math.prod(sent))]
    return nn.Sequential(*dense, *ends)


def _placed(sent: Shape, shape: Shape, width: int) -> nn.Module:
    """What was sent as planes of so many channels, as many places as it has; a vector gets some."""
    if is_plane(sent):
        return nn.Sequential(nn.Unflatten(1, sent), nn.Conv2d(sent[0], width, 3, padding=1), nn.ReLU())
    places = [max(1, side // 4) for side in shape[1:]]
    dense = nn.Linear(math.prod(sent), width * math.prod(places))
    return nn.Sequential(dense, nn.ReLU(), nn.Unflatten(1, (width, *places)))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.inside(x))
