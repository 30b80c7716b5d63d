"""ResNet-9 for 32x32 images: the narrow one of SEM's lineage and the common wide one."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import Residual, conv_norm_relu, then_pool
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=8, least_width=8)
NARROW = (32, 64, 128, 256)


def resnet9(shape: Shape, classes: int) -> Network:
    """Widths 32, 64, 128, 256, without the original's dropout (`resnet9_dropout`), which has no weights."""
    return _resnet9("resnet9", shape, classes, NARROW)


def resnet9_dropout(shape: Shape, classes: int) -> Network:
    """SEM's own: 20 % of the features are dropped before the head. A GPU drops others than a CPU does."""
    return _resnet9("resnet9-dropout", shape, classes, NARROW, dropout=0.2)


def resnet9_wide(shape: Shape, classes: int) -> Network:
    """Widths 64, 128, 256, 512."""
    return _resnet9("resnet9-wide", shape, classes, (64, 128, 256, 512))


def _resnet9(name: str, shape: Shape, classes: int, widths: tuple[int, int, int, int], dropout: float = 0.0) -> Network:
    channels, height, width = SHAPES.check(name, shape)
    a, b, c, d = widths
    # On 32x32 inputs this is the 4x4 pooling of the definition; other sizes are pooled to one value as well.
    last_pool = nn.MaxPool2d((height // 8, width // 8))
    pooled = OrderedDict[str, nn.Module](max=last_pool, flatten=nn.Flatten())
    if dropout:
        pooled["dropout"] = nn.Dropout(dropout)
    stages: dict[str, nn.Module] = {
        "conv1": _convolution(channels, a),
        "conv2": then_pool(_convolution(a, b), nn.MaxPool2d(2)),
        "res1": _residual(b),
        "conv3": then_pool(_convolution(b, c), nn.MaxPool2d(2)),
        "conv4": then_pool(_convolution(c, d), nn.MaxPool2d(2)),
        "res2": _residual(d),
        "pool": nn.Sequential(pooled),
        "head": nn.Linear(d, classes),
    }
    return Network(name, stages, cut="conv2")


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return conv_norm_relu(inputs, outputs, 3, padding=1, bias=True)


def _residual(width: int) -> Residual:
    body = nn.Sequential(OrderedDict(first=_convolution(width, width), second=_convolution(width, width)))
    return Residual(body, nn.Identity())
