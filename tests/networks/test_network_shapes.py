"""What comes out of every stage, which inputs are taken, and the order of the layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewfed import networks
from fewfed.errors import ConfigError
from fewfed.network import Network


def stage_shapes(network: Network, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    seen: dict[str, tuple[int, ...]] = {}

    def record(stage: str, main: Tensor) -> Tensor:
        seen[stage] = tuple(main.shape[1:])
        return main

    with torch.no_grad():
        network.apply(network.model(), torch.zeros(1, *shape), tap=record, train=False)
    return seen


def test_mobilenetv2_outputs() -> None:
    network = networks.build("mobilenetv2", (3, 32, 32), 10, seed=0)
    blocks = [(16, 32), *[(24, 32)] * 2, *[(32, 16)] * 3, *[(64, 8)] * 4, *[(96, 8)] * 3, *[(160, 4)] * 3, (320, 4)]
    expected = {"stem": (32, 32, 32)}
    expected |= {f"block{i}": (width, side, side) for i, (width, side) in enumerate(blocks, start=1)}
    expected |= {"last": (1280, 4, 4), "pool": (1280,), "head": (10,)}
    assert stage_shapes(network, (3, 32, 32)) == expected
    assert network.cut == "block1"


def test_audionet_outputs() -> None:
    network = networks.build("audionet", (2, 64, 344), 10, seed=0)
    assert stage_shapes(network, (2, 64, 344)) == {
        "conv1": (8, 32, 172),
        "conv2": (16, 16, 86),
        "conv3": (32, 8, 43),
        "conv4": (64, 4, 22),
        "pool": (64,),
        "head": (10,),
    }
    assert network.cut == "conv2"


def test_harnet_outputs() -> None:
    network = networks.build("harnet", (1, 128, 3), 6, seed=0)
    assert stage_shapes(network, (1, 128, 3)) == {
        "conv1": (64, 43, 5),
        "conv2": (128, 20, 7),
        "conv3": (256, 9, 9),
        "conv4": (256, 3, 11),
        "flatten": (8448,),
        "head": (6,),
    }
    assert network.cut == "conv2"


def test_alexnet_sides_for_256() -> None:
    network = networks.build("alexnet", (3, 256, 256), 10, seed=0)
    sides: list[int] = []
    x = torch.zeros(1, 3, 256, 256)
    with torch.no_grad():
        for stage in ("conv1", "conv2", "conv3", "conv4", "conv5", "pool"):
            for layer in network.module(stage).eval().children():
                x = layer(x)
                if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AdaptiveAvgPool2d):
                    sides.append(x.shape[-1])
    assert sides == [63, 31, 31, 15, 15, 15, 15, 7, 6]
    widths = {stage: out[0] for stage, out in stage_shapes(network, (3, 256, 256)).items()}
    assert [widths[f"conv{i}"] for i in range(1, 6)] == [64, 192, 384, 256, 256]
    assert (widths["pool"], widths["fc1"], widths["fc2"]) == (9216, 1024, 1024)


def test_unet_outputs_of_pooled_encoder_and_decoder() -> None:
    network = networks.build("unet", (3, 32, 48), 2, seed=0)
    assert stage_shapes(network, (3, 32, 48)) == {
        "enc1": (32, 16, 24),
        "enc2": (64, 8, 12),
        "enc3": (128, 4, 6),
        "enc4": (256, 2, 3),
        "bottleneck": (512, 2, 3),
        "dec4": (256, 4, 6),
        "dec3": (128, 8, 12),
        "dec2": (64, 16, 24),
        "dec1": (32, 32, 48),
        "head": (2, 32, 48),
    }


def test_resnet18_outputs_with_both_stems() -> None:
    cifar = stage_shapes(networks.build("resnet18", (3, 32, 32), 10, seed=0), (3, 32, 32))
    assert [cifar[stage] for stage in ("stem", "layer1", "layer2", "layer3", "layer4", "pool")] == [
        (64, 32, 32),
        (64, 32, 32),
        (128, 16, 16),
        (256, 8, 8),
        (512, 4, 4),
        (512,),
    ]
    wide_stem = stage_shapes(networks.build("resnet18-7x7", (3, 32, 32), 10, seed=0), (3, 32, 32))
    assert wide_stem["stem"] == (64, 8, 8)
    assert wide_stem["layer4"] == (512, 1, 1)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 28), (1, 32, 32), (3, 32, 32)])
def test_lenet5_takes_28_padded_and_32_unpadded(shape: tuple[int, ...]) -> None:
    seen = stage_shapes(networks.build("lenet5", shape, 10, seed=0), shape)
    assert seen == {"conv1": (6, 14, 14), "conv2": (16, 5, 5), "fc1": (120,), "fc2": (84,), "head": (10,)}


@pytest.mark.parametrize(("name", "side", "width"), [("resnet9", 32, 256), ("resnet9-wide", 24, 512)])
def test_resnet9_ends_in_one_value_a_channel(name: str, side: int, width: int) -> None:
    shape = (3, side, side)
    seen = stage_shapes(networks.build(name, shape, 10, seed=0), shape)
    assert seen["res2"] == (width, side // 8, side // 8)
    assert seen["pool"] == (width,)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 31), (4, 50, 17), (1, 96, 96)])
def test_small_cnn_takes_any_image_from_8x8(shape: tuple[int, ...]) -> None:
    seen = stage_shapes(networks.build("small-cnn", shape, 7, seed=0), shape)
    assert (seen["pool"], seen["head"]) == ((128,), (7,))


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (6, 10)])
def test_mlp_takes_any_shape(shape: tuple[int, ...]) -> None:
    network = networks.build("mlp", shape, 4, seed=0)
    assert stage_shapes(network, shape)["head"] == (4,)
    d = math.prod(shape)
    assert network.parameter_count() == (d * 128 + 128) + (128 * 64 + 64) + (64 * 4 + 4)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("lenet5", (1, 8, 8), "28x28 or 32x32"),
        ("lenet5-tanh", (1, 28, 32), "28x28 or 32x32"),
        ("alexnet", (3, 32, 32), "height >= 63 and width >= 63"),
        ("unet", (3, 40, 32), "multiples of 16"),
        ("harnet", (1, 63, 3), "height >= 64"),
        ("small-cnn", (3, 7, 32), "height >= 8"),
        ("mobilenetv2", (64,), "(channels, height, width)"),
        ("mlp", (), "any shape"),
        ("digits-cnn", (1, 0, 8), "height >= 4"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_those_that_do(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        networks.build(name, shape, 10, seed=0)
    assert says in str(refused.value)
    assert f"'{name}'" in str(refused.value)


@pytest.mark.parametrize(("name", "shape"), [("harnet", (1, 64, 1)), ("alexnet", (3, 63, 63)), ("unet", (1, 16, 16))])
def test_the_smallest_shape_that_is_promised_works(name: str, shape: tuple[int, ...]) -> None:
    assert stage_shapes(networks.build(name, shape, 3, seed=0), shape)["head"][0] == 3


def test_every_classifier_ends_in_one_linear_layer_on_a_flat_vector(case) -> None:
    network = case.network
    assert network.stages[-1] == "head"
    out = network.apply(case.model, case.x, train=False)
    assert out.shape[:2] == (len(case.x), case.classes)
    if network.name.startswith("unet"):
        return
    head = network.module("head")
    assert isinstance(head, nn.Linear)
    penultimate = network.apply(case.model, case.x, stop=network.penultimate, train=False)
    assert penultimate.shape == (len(case.x), head.in_features)


def test_every_cut_is_an_early_stage(case) -> None:
    assert case.network.position(case.network.cut) <= case.network.penultimate
    assert case.network.name == "mlp" or case.network.position(case.network.cut) < case.network.penultimate


def test_nothing_draws_or_works_in_place(case) -> None:
    for stage in case.network.stages:
        for module in case.network.module(stage).modules():
            assert not isinstance(module, nn.Dropout | nn.Dropout2d) or "dropout" in case.network.name
            assert not getattr(module, "inplace", False)


def test_layer_order_harnet_is_conv_norm_relu_and_audionet_conv_relu_norm() -> None:
    """One block of each against the operations written out, with running statistics that matter."""
    generator = torch.Generator().manual_seed(0)
    for name, shape in (("harnet", (1, 128, 3)), ("audionet", (2, 32, 40))):
        network = networks.build(name, shape, 6, seed=1)
        model = network.model()
        for key, value in model["buffers"].items():
            if value.is_floating_point():
                model["buffers"][key] = torch.rand(value.shape, generator=generator) + 0.5
        x = torch.randn(2, *shape, generator=generator)
        p, b = model["params"], model["buffers"]
        stride, padding = ((3, 1), 1) if name == "harnet" else (2, 2)
        out = F.conv2d(x, p["conv1.conv.weight"], p["conv1.conv.bias"], stride, padding)
        if name == "audionet":
            out = out.relu()
        mean, var = (b[f"conv1.norm.running_{part}"].view(1, -1, 1, 1) for part in ("mean", "var"))
        out = (out - mean) / (var + 1e-5).sqrt()
        if name == "harnet":
            out = out.relu()
        torch.testing.assert_close(network.apply(model, x, stop=1, train=False), out, atol=1e-5, rtol=1e-5)


def test_shared_features_are_signed_in_mobilenetv2_and_audionet_but_not_in_harnet() -> None:
    for name, shape, signed in (
        ("mobilenetv2", (3, 32, 32), True),
        ("audionet", (2, 64, 344), True),
        ("harnet", (1, 128, 3), False),
    ):
        network = networks.build(name, shape, 6, seed=0)
        x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            features = network.apply(network.model(), x, stop=network.position(network.cut), train=True)
        assert bool((features < 0).any()) is signed


def test_mobilenetv2_shortcuts() -> None:
    """With the last normalisation of the body silenced, a block is its shortcut: identity, projection or nothing."""
    network = networks.build("mobilenetv2", (3, 32, 32), 10, seed=0)
    model = network.model()
    silenced = {}
    for key, value in model["params"].items():
        silenced[key] = torch.zeros_like(value) if ".project.norm." in key else value
    model["params"] = silenced
    x = torch.randn(2, 24, 32, 32, generator=torch.Generator().manual_seed(0))

    def block(number: int, value: Tensor) -> Tensor:
        result = network.apply(model, value, start=number, stop=number + 1, train=False)
        assert isinstance(result, Tensor)
        return result

    assert torch.equal(block(3, x), x)
    assert not block(4, x).any()
    projected = F.conv2d(x[:, :16], model["params"]["block2.shortcut.conv.weight"]) / math.sqrt(1 + 1e-5)
    torch.testing.assert_close(block(2, x[:, :16]), projected, atol=1e-5, rtol=1e-5)


def test_lenet5_tanh_against_the_operations_written_out() -> None:
    network = networks.build("lenet5-tanh", (1, 28, 28), 10, seed=0)
    model = network.model()
    p = model["params"]
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    h = F.avg_pool2d(torch.tanh(F.conv2d(x, p["conv1.conv.weight"], p["conv1.conv.bias"], padding=2)), 2)
    h = F.avg_pool2d(torch.tanh(F.conv2d(h, p["conv2.conv.weight"], p["conv2.conv.bias"])), 2).flatten(1)
    h = torch.tanh(h @ p["fc1.linear.weight"].T + p["fc1.linear.bias"])
    h = torch.tanh(h @ p["fc2.linear.weight"].T + p["fc2.linear.bias"])
    h = h @ p["head.weight"].T + p["head.bias"]
    torch.testing.assert_close(network.apply(model, x), h, atol=1e-5, rtol=1e-5)


def test_resnet9_with_dropout_is_resnet9_but_for_a_fifth_of_the_features_in_training() -> None:
    net, plain = (networks.build(name, (3, 32, 32), 10, 0) for name in ("resnet9-dropout", "resnet9"))
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model, before_head = plain.model(), plain.penultimate
    kept = plain.apply(model, x, stop=before_head, train=False)
    assert torch.equal(net.apply(model, x, stop=before_head, train=False), kept)
    torch.manual_seed(0)
    dropped = net.apply(net.model(), x, stop=before_head)
    reference = plain.apply(plain.model(), x, stop=before_head)
    gone = (dropped == 0) & (reference != 0)
    assert float(gone.sum() / (reference != 0).sum()) == pytest.approx(0.2, abs=0.02)
    torch.testing.assert_close(dropped[~gone], reference[~gone] / 0.8)
