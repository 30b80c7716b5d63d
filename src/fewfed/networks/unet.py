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
    channels, _, _ = SHAPES.check("unet", shape)
    stages: dict[str, nn.Module] = {
        "enc1": Encode(channels, 32),
        "enc2": Encode(32, 64),
        "enc3": Encode(64, 128),
        "enc4": Encode(128, 256),
        "bottleneck": Bottleneck(256, 512),
        "dec4": Decode(512, 256),
        "dec3": Decode(256, 128),
        "dec2": Decode(128, 64),
        "dec1": Decode(64, 32),
        "head": nn.Conv2d(32, classes, 1),
    }
    return Network("unet", stages, cut="enc1")


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
