"""Parameter counts as published, stage by stage where the papers give them."""

from __future__ import annotations

import pytest
from torch import nn

from fewfed import networks

CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)

PUBLISHED = [
    ("mobilenetv2", CIFAR, 10, 2_296_922),
    ("audionet", (2, 64, 344), 10, 25_602),
    ("harnet", (1, 128, 3), 6, 691_974),
    ("lenet5", MNIST, 10, 61_706),
    ("lenet5", MNIST, 62, 66_126),
    ("lenet5", (1, 32, 32), 10, 61_706),
    ("lenet5-tanh", MNIST, 10, 61_706),
    ("mcmahan-cnn", MNIST, 10, 1_663_370),
    ("resnet9", CIFAR, 10, 1_647_242),
    ("resnet9", CIFAR, 100, 1_670_372),
    ("resnet9-dropout", CIFAR, 10, 1_647_242),
    ("resnet9-wide", CIFAR, 10, 6_575_370),
    ("resnet9-wide", CIFAR, 100, 6_621_540),
    ("resnet18", CIFAR, 10, 11_173_962),
    ("resnet18", CIFAR, 100, 11_220_132),
    ("resnet18", (3, 64, 64), 200, 11_271_432),
    ("resnet18-7x7", CIFAR, 10, 11_181_642),
    ("resnet18-7x7", CIFAR, 100, 11_227_812),
    ("resnet18-7x7", (3, 64, 64), 200, 11_279_112),
    ("alexnet", (3, 256, 256), 10, 12_974_154),
    ("alexnet-fedbn", (3, 256, 256), 10, 57_063_498),
    ("unet", (3, 384, 384), 2, 7_763_074),
    ("unet-small", (3, 128, 128), 2, 486_562),
]

MOBILENET_STAGES = {
    "stem": 928,
    "block1": 2_528,
    "block2": 5_568,
    "block3": 8_832,
    "block4": 10_000,
    "block5": 14_848,
    "block6": 14_848,
    "block7": 21_056,
    "block8": 54_272,
    "block9": 54_272,
    "block10": 54_272,
    "block11": 72_960,
    "block12": 118_272,
    "block13": 118_272,
    "block14": 155_264,
    "block15": 320_000,
    "block16": 320_000,
    "block17": 525_760,
    "last": 412_160,
    "pool": 0,
    "head": 12_810,
}
AUDIONET_STAGES = {"conv1": 424, "conv2": 1_200, "conv3": 4_704, "conv4": 18_624, "pool": 0, "head": 650}
HARNET_STAGES = {"conv1": 384, "conv2": 49_536, "conv3": 197_376, "conv4": 393_984, "flatten": 0, "head": 50_694}


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), PUBLISHED)
def test_published_parameter_counts(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    network = networks.build(name, shape, classes, seed=0)
    assert network.parameter_count() == expected
    assert sum(value.numel() for value in network.model()["params"].values()) == expected


@pytest.mark.parametrize(
    ("name", "shape", "classes", "floats", "layers"),
    [
        ("mobilenetv2", CIFAR, 10, 35_088, 57),
        ("audionet", (2, 64, 344), 10, 240, 4),
        ("harnet", (1, 128, 3), 6, 1_408, 4),
    ],
)
def test_published_running_statistics(
    name: str, shape: tuple[int, ...], classes: int, floats: int, layers: int
) -> None:
    buffers = networks.build(name, shape, classes, seed=0).model()["buffers"]
    assert sum(value.numel() for value in buffers.values() if value.is_floating_point()) == floats
    assert sum(key.endswith("running_var") for key in buffers) == layers


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mobilenetv2", CIFAR, 10, MOBILENET_STAGES),
        ("audionet", (2, 64, 344), 10, AUDIONET_STAGES),
        ("harnet", (1, 128, 3), 6, HARNET_STAGES),
    ],
)
def test_flea_parameters_stage_by_stage(
    name: str, shape: tuple[int, ...], classes: int, expected: dict[str, int]
) -> None:
    network = networks.build(name, shape, classes, seed=0)
    assert {stage: network.parameter_count([stage]) for stage in network.stages} == expected


@pytest.mark.parametrize(
    ("name", "shape", "before_cut"),
    [("mobilenetv2", CIFAR, 3_456), ("audionet", (2, 64, 344), 1_624), ("harnet", (1, 128, 3), 49_920)],
)
def test_parameters_before_fleas_cut(name: str, shape: tuple[int, ...], before_cut: int) -> None:
    network = networks.build(name, shape, 10, seed=0)
    assert network.parameter_count(network.stages[: network.position(network.cut)]) == before_cut


def test_mobilenetv2_convolutions_are_57_and_the_fifth_ends_block_1() -> None:
    """ICLR counts convolutions: its l = 1, 5, 9 are the stem, block 1 and block 2."""
    network = networks.build("mobilenetv2", CIFAR, 10, seed=0)
    counted, after = 0, {}
    for stage in network.stages:
        counted += sum(isinstance(module, nn.Conv2d) for module in network.module(stage).modules())
        after[stage] = counted
    assert (after["stem"], after["block1"], after["block2"], after["head"]) == (1, 5, 9, 57)
