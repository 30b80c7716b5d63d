"""U-Net for segmentation, as FedFA uses it on prostate MRI (its Tables 14 and 15)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fewfed.network import Network
from fewfed.networks.blocks import conv_norm_relu
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(multiple=16)


def unet(shape: Shape, classes: int) -> Network:
    """Four encoder stages, a bottleneck and four decoder stages; the head gives `classes` logits for every pixel.

    Between stages travels (main path, skip 1, skip 2, ...). The skips leave an encoder stage before its pooling and a
    tap never sees them: FedFA augments the pooled path only.
    """
    return _of_width("unet", shape, classes, 32)


def unet_small(shape: Shape, classes: int) -> Network:
    """The same with a quarter of the channels: a sixteenth of the weights, for few images and no GPU."""
    return _of_width("unet-small", shape, classes, 8)


def _of_width(name: str, shape: Shape, classes: int, width: int) -> Network:
    channels, _, _ = SHAPES.check(name, shape)
    one, two, three, four, five = (width * 2**level for level in range(5))
    stages: dict[str, nn.Module] = {
        "enc1": Encode(channels, one),
        "enc2": Encode(one, two),
        "enc3": Encode(two, three),
        "enc4": Encode(three, four),
        "bottleneck": Bottleneck(four, five),
        "dec4": Decode(five, four),
        "dec3": Decode(four, three),
        "dec2": Decode(three, two),
        "dec1": Decode(two, one),
        "head": nn.Conv2d(one, classes, 1),
    }
    return Network(name, stages, cut="enc1")


class Encode(nn.Module):
    """Two convolutions, whose output is kept as a skip, and pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convs = _two_convolutions(inputs, outputs)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        main, *skips = x if isinstance(x, tuple) else (x,)
        skip: Tensor = self.convs(main)
        return (self.pool(skip), *skips, skip)


class Bottleneck(nn.Module):
    """Two convolutions at the lowest resolution; the skips pass by."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convs = _two_convolutions(inputs, outputs)

    def forward(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        main, *skips = x
        return (self.convs(main), *skips)


class Decode(nn.Module):
    """Doubles the resolution, joins the newest skip and convolves twice. Without skips left, the plain tensor."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.convs = _two_convolutions(2 * outputs, outputs)

    def forward(self, x: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        main, *skips, newest = x
        decoded: Tensor = self.convs(torch.cat([self.up(main), newest], dim=1))
        return (decoded, *skips) if skips else decoded


def _two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            first=conv_norm_relu(inputs, outputs, 3, padding=1),
            second=conv_norm_relu(outputs, outputs, 3, padding=1),
        )
    )
