"""BatchNorm by kernels of our own against torch in double precision: on a GPU, or by Triton's interpreter."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewfed import tree
from fewfed.engine import layout
from fewfed.engine.executors.cuda import norms
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.norms import NoKernels, NormKernel, by_kernel
from fewfed.engine.executors.cuda.options import Options
from fewfed.network import Network
from support import digits_federation, gap, job_of, run

CPU = torch.device("cpu")
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def kernel() -> NormKernel:
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    from fewfed.engine.executors.cuda.norm_function import batch_norm_relu

    return batch_norm_relu


def by_torch(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float, relu: bool
) -> Tensor:
    y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=momentum, eps=eps)
    return y.relu() if relu else y


class Counting:
    """Torch's BatchNorm, noting for every call whether a ReLU was joined to it."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def __call__(self, *args: Any) -> Tensor:
        self.calls.append(args[-1])
        return by_torch(*args)


def normalised(kernel: NormKernel, x: Tensor, relu: bool, kept: torch.dtype) -> list[Tensor]:
    """Output, gradients of input, scale and shift, and both running statistics."""
    generator = torch.Generator().manual_seed(1)
    channels = x.shape[1]
    x = x.detach().clone(memory_format=torch.channels_last).requires_grad_()
    weight, bias, mean, var = (0.5 + torch.rand(4, channels, generator=generator)).to(HERE, kept)
    weight.requires_grad_()
    bias.requires_grad_()
    y = kernel(x, weight, bias, mean, var, 0.1, 1e-5, relu)
    upward = torch.randn(x.shape, generator=generator).to(HERE, x.dtype)
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), upward), mean, var]


def features(shape: tuple[int, ...], mean: float = 1.0) -> Tensor:
    x = mean + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return x.to(HERE).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    "shape",
    [(2, 1, 1, 1), (3, 5, 7, 3), (32, 40, 4, 4), (16, 33, 8, 8), (32, 6, 7, 9), (5, 70, 15, 15)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_kernels_agree_with_torch_in_double_precision(kernel: NormKernel, shape: tuple[int, ...], relu: bool) -> None:
    x = features(shape)
    exact = normalised(by_torch, x.double(), relu, torch.float64)
    for found, wanted in zip(normalised(kernel, x, relu, torch.float32), exact, strict=True):
        assert found.shape == wanted.shape
        scale = max(1.0, float(wanted.detach().abs().max()))
        assert float((found.double() - wanted).abs().max()) < 5e-6 * scale


@pytest.mark.parametrize("shape", [(8, 12, 6, 6), (32, 12, 9, 9)])
def test_a_large_mean_costs_kernels_no_more_digits_than_the_input_has(
    kernel: NormKernel, shape: tuple[int, ...]
) -> None:
    x = features(shape, mean=1000.0)
    exact = normalised(by_torch, x.double(), False, torch.float64)
    for found, wanted in zip(normalised(kernel, x, False, torch.float32), exact, strict=True):
        assert float((found.double() - wanted).abs().max()) < 1e-4 * max(1.0, float(wanted.detach().abs().max()))


@pytest.mark.parametrize("shape", [(8, 12, 6, 6), (32, 12, 9, 9)])
def test_bfloat16_features_are_normalised_in_float32(kernel: NormKernel, shape: tuple[int, ...]) -> None:
    x = features(shape).bfloat16()
    y, dx, *sums = normalised(kernel, x, True, torch.float32)
    exact_y, exact_dx, *exact_sums = normalised(by_torch, x.double(), True, torch.float64)
    assert (y.dtype, dx.dtype) == (torch.bfloat16, torch.bfloat16)
    for found, wanted in zip((y, dx), (exact_y, exact_dx), strict=True):
        assert float((found.double() - wanted).abs().max()) < 2e-2 * float(wanted.abs().max())
    for found, wanted in zip(sums[2:], exact_sums[2:], strict=True):
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_stays_so_behind_the_relu(kernel: NormKernel) -> None:
    for shape in ((4, 2, 3, 3), (32, 2, 9, 9)):
        x = features(shape)
        x[0, 1, 0, 0] = float("nan")
        y, *_ = normalised(kernel, x, True, torch.float32)
        assert bool(torch.isnan(y[:, 1]).all())
        assert bool(torch.isfinite(y[:, 0]).all())


def test_kernels_can_be_differentiated_twice(kernel: NormKernel) -> None:
    def slope(kernel: NormKernel, dtype: torch.dtype) -> list[Tensor]:
        x = features((4, 3, 5, 5)).to(dtype).detach().requires_grad_()
        weight, bias = torch.tensor([[1.0, 0.5, 2.0], [0.1, 0.2, 0.3]], dtype=dtype, device=HERE)
        weight.requires_grad_()
        y = kernel(x, weight, bias, torch.zeros_like(bias), torch.ones_like(bias), 0.1, 1e-5, True)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        return [first, *torch.autograd.grad(first.square().sum(), (x, weight))]

    for found, wanted in zip(slope(kernel, torch.float32), slope(by_torch, torch.float64), strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.detach().abs().max()))


class Apart(nn.Module):
    """Calls the parts of a sequence itself, and leaves its ReLU out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.parts[1](self.parts[0](x))
        return result


def network() -> Network:
    torch.manual_seed(0)
    return Network(
        "mixed",
        {
            "joined": nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            "apart": Apart(),
            "behind": nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)),
            "untracked": nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
            "plain": nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.ReLU()),
        },
    )


def model_of(net: Network) -> dict[str, Any]:
    model = net.model()
    return {"params": layout.channels_last(model["params"]), "buffers": model["buffers"]}


def test_layers_that_suit_are_run_by_the_kernel_with_the_same_result() -> None:
    net, count = network(), Counting()
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    ours, theirs = model_of(net), model_of(net)
    with by_kernel(net, count).asked():
        found = net.apply(ours, x)
    assert count.calls == [True, False, False]
    assert torch.equal(found, net.apply(theirs, x))
    assert gap(ours["buffers"], theirs["buffers"]) == 0
    assert len(count.calls) == 3


def test_layers_that_do_not_suit_run_as_ever() -> None:
    net, count = network(), Counting()
    x = torch.randn(3, 2, 6, 6)
    with by_kernel(net, count).asked():
        net.apply(model_of(net), x, train=False)
        net.apply(net.model(), x)  # Kernels, and so features, lie in reading order.
        torch.func.vmap(lambda x: net.apply(model_of(net), x, stop=1, train=False))(x.unsqueeze(0))
    assert count.calls == []


def test_a_layer_that_somebody_watches_is_not_joined_with_its_relu() -> None:
    norm, seen = nn.BatchNorm2d(4), []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(float(output.min())))
    net, count = Network("watched", {"joined": nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU())}), Counting()
    with by_kernel(net, count).asked():
        y = net.apply(model_of(net), torch.randn(3, 2, 6, 6))
    assert count.calls == [False]
    assert float(y.min()) == 0
    assert seen[0] < 0


def test_a_failing_pass_leaves_the_network_as_it_was() -> None:
    net, count = network(), Counting()
    with pytest.raises(RuntimeError, match="channels"), by_kernel(net, count).asked():
        net.apply(model_of(net), torch.randn(3, 5, 6, 6))
    net.apply(model_of(net), torch.randn(3, 2, 6, 6))
    assert count.calls == []


def distance_and_events(monkeypatch: pytest.MonkeyPatch, method: str, kernel: NormKernel) -> tuple[float, list[str]]:
    # One step each: the kernels know single precision only, whose rounding further steps would magnify.
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 20}
    job = job_of(method, digits_federation(3, (12, 20, 12)), training=training)
    expected = run(job, rounds=1, cohort=3).server
    monkeypatch.setattr(norms, "of", lambda net, device, dtype: by_kernel(net, kernel))
    options = Options(device="cpu", mode="graphs", precision="tf32", streams=1)  # No rounding on a CPU.
    recorder = run(job, rounds=1, cohort=3, executor=Device(job, options=options))
    return gap(recorder.server, expected), recorder.events


@pytest.mark.skipif(HERE.type != "cpu", reason="the interpreter's place is a machine without a GPU")
@pytest.mark.parametrize(
    "method",
    ["fedavg", "flea", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fedntd", "fedmix", "fedsam"))],
)
def test_a_run_with_kernels_agrees_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, kernel: NormKernel, method: str
) -> None:
    distance, events = distance_and_events(monkeypatch, method, kernel)
    assert distance < 2e-5
    assert events == ["BatchNorm: kernels of fewfed's own, 2 layers, mode 'graphs'"]


def test_stacks_in_bfloat16_normalise_in_float32() -> None:
    job = job_of("fedavg", digits_federation(4, 12), training={"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 4})
    servers = []
    for mode in ("graphs", "stacked"):
        executor = Device(job, options=Options(device="cpu", mode=mode, stack=4, precision="bf16"))  # type: ignore[arg-type]
        recorder = run(job, rounds=1, cohort=4, executor=executor)
        assert recorder.events == []
        servers.append(recorder.server)
    start = {"model": job.net.model()}
    assert gap(*servers) < 0.05 * gap(servers[0], start)


@pytest.mark.parametrize("said", ["no such instruction\nand more", "at 12:4:\n  x = y\nno such instruction\n"])
def test_a_run_whose_kernels_fail_goes_on_without_them(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    def broken(*args: object) -> Tensor:
        raise RuntimeError(said)

    distance, events = distance_and_events(monkeypatch, "fedavg", broken)  # type: ignore[arg-type]
    assert distance < 2e-5
    assert events[1:] == ["phase 'train' runs without kernels for BatchNorm: no such instruction"]


def test_kernels_are_checked_before_they_are_used(kernel: NormKernel) -> None:
    def off(*args: Any) -> Tensor:
        return 1.001 * by_torch(*args)

    norms.check(kernel, HERE, torch.float32)
    norms.check(kernel, HERE, torch.bfloat16)
    with pytest.raises(NoKernels, match=r"differ from torch's by 0\.001"):
        norms.check(off, CPU, torch.float32)


def test_a_machine_without_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fewfed.engine.executors.cuda.norm_function", None)
    with pytest.raises(NoKernels, match="Triton cannot be loaded"):
        norms.of(network(), torch.device("cuda"), torch.float32)


def test_no_kernels_are_sought_where_they_are_of_no_use() -> None:
    assert norms.of(network(), CPU, torch.float32) is None
    assert norms.of(Network("dense", {"head": nn.Linear(2, 2)}), torch.device("cuda"), torch.float32) is None


def test_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counting()
    monkeypatch.setattr(norms, "of", lambda net, device, dtype: by_kernel(net, count))
    job = job_of("fedavg", digits_federation(3, 12), training={"epochs": 1, "batch": 4})
    for precision, kernels in (("tf32", False), ("float32", True)):
        options = Options(device="cpu", mode="graphs", precision=precision, kernels=kernels)
        server = run(job, rounds=1, cohort=3, executor=Device(job, options=options)).server
        assert list(tree.leaves(server))
    assert count.calls == []
