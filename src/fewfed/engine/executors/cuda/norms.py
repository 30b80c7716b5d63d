"""Replaces the calls of a network's BatchNorm layers while a step is recorded.

Single clients: in networks with many BatchNorm layers, most of a step is their small kernels, so fewfed has faster
ones. Stacks: under autocast torch mixes up the types of a BatchNorm layer unless it gets float32. The modules are not
changed: inside `Norms.asked` the `forward` of a layer, or of a `Sequential` in which a ReLU follows one, is another
function. What the kernels cannot do (evaluation, another memory order, one value a channel) is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewfed.errors import in_one_line
from fewfed.network import Network
from fewfed.torch_private import BatchNorm, is_watched, transforming

_MOST = 2**31
"""Most elements of a tensor: the kernels count them with 32-bit numbers."""


class NormKernel(Protocol):
    """BatchNorm with batch statistics, and a ReLU if asked for; updates the running statistics."""

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor: ...


class NoKernels(Exception):
    """The kernels cannot be used here, and why."""


class Norms:
    """Modules of a network, and what is called instead of each."""

    def __init__(self, calls: Iterable[tuple[nn.Module, Callable[[Tensor], Tensor]]]) -> None:
        self._calls = list(calls)

    @property
    def layers(self) -> int:
        return sum(isinstance(part, BatchNorm) for part, _ in self._calls)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Use the replacements inside."""
        for part, call in self._calls:
            part.forward = call
        try:
            yield
        finally:
            for part, _ in self._calls:
                del part.forward


def in_float32(net: Network) -> Norms:
    """Replacements that normalise in float32 and return the type they got."""

    def call(norm: BatchNorm, x: Tensor) -> Tensor:
        return type(norm).forward(norm, x.float()).to(x.dtype)

    return Norms((part, partial(call, part)) for part in _parts(net) if isinstance(part, BatchNorm))


def by_kernel(net: Network, kernel: NormKernel) -> Norms:
    """Replacements that use a kernel where it can be used, for a layer and the ReLU that follows it."""
    use = partial(_kernel_or_torch, kernel)
    calls: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
    for part in _parts(net):
        if type(part) is nn.BatchNorm2d:
            calls.append((part, partial(use, part, None)))
        elif type(part) is nn.Sequential:
            calls.append((part, partial(_in_turn, use, _pairs(part))))
    return Norms(calls)


def _parts(net: Network) -> Iterator[nn.Module]:
    for stage in net.stages:
        yield from net.module(stage).modules()


def _in_turn(use: Callable[..., Tensor], pairs: list[tuple[nn.Module, nn.ReLU | None]], x: Tensor) -> Tensor:
    for part, relu in pairs:
        x = part(x) if relu is None else use(part, relu, x)
    return x


def _kernel_or_torch(kernel: NormKernel, norm: nn.BatchNorm2d, relu: nn.ReLU | None, x: Tensor) -> Tensor:
    if not _suits(norm, x):
        y = nn.BatchNorm2d.forward(norm, x)
        return y if relu is None else relu(y)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    return kernel(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, relu is not None
    )


def of(net: Network, device: torch.device, dtype: torch.dtype) -> Norms | None:
    """Replacements by fewfed's kernels, checked on this device; None where the network has no use for them."""
    if device.type != "cuda" or not any(type(part) is nn.BatchNorm2d for part in _parts(net)):
        return None
    try:
        from fewfed.engine.executors.cuda.norm_function import (
            batch_norm_relu,  # Loads Triton, which comes with torch for CUDA.
        )
    except ImportError as error:
        raise NoKernels(f"Triton cannot be loaded ({error})") from error
    check(batch_norm_relu, device, dtype)
    return by_kernel(net, batch_norm_relu)


def check(kernel: NormKernel, device: torch.device, dtype: torch.dtype) -> None:
    """Compare with torch, for few and many rows, in case a new compiler or device computes something wrong."""
    for shape in ((2, 48, 8, 8), (8, 48, 16, 16)):
        try:
            gap = _gap(kernel, shape, device, dtype)
        except Exception as error:
            raise NoKernels(in_one_line(error)) from error
        if not gap <= 16 * torch.finfo(dtype).eps:
            raise NoKernels(f"they differ from torch's by {gap:.1g} of the largest value")


def _gap(kernel: NormKernel, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(0)
    x = (1 + torch.randn(shape, generator=generator)).to(dtype)
    upward = torch.randn(shape, generator=generator).to(dtype)
    weight, bias = 1 + torch.rand((2, shape[1]), generator=generator)

    def results(kernel: NormKernel, dtype: torch.dtype, kept: torch.dtype) -> list[Tensor]:
        ordered = x.to(device, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
        scale, shift = (value.to(device, kept).requires_grad_() for value in (weight, bias))
        mean, var = torch.zeros_like(scale), torch.ones_like(scale)
        y = kernel(ordered, scale, shift, mean, var, 0.1, 1e-5, True)
        return [y.detach(), *torch.autograd.grad(y, (ordered, scale, shift), upward.to(device, dtype)), mean, var]

    exact = results(_by_torch, torch.float64, torch.float64)
    pairs = zip(results(kernel, dtype, torch.float32), exact, strict=True)
    return max(float((found.double() - value).abs().max() / value.abs().max()) for found, value in pairs)


def _by_torch(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float, relu: bool
) -> Tensor:
    y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=momentum, eps=eps)
    return y.relu() if relu else y


def _pairs(sequence: nn.Sequential) -> list[tuple[nn.Module, nn.ReLU | None]]:
    """The parts in order, a ReLU together with the BatchNorm before it."""
    pairs: list[tuple[nn.Module, nn.ReLU | None]] = []
    for part in sequence:
        before, taken = pairs[-1] if pairs else (None, None)
        if (
            type(part) is nn.ReLU
            and type(before) is nn.BatchNorm2d
            and not (taken or is_watched(before) or is_watched(part))
        ):
            pairs[-1] = (before, part)
        else:
            pairs.append((part, None))
    return pairs


def _suits(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    return (
        not transforming()  # Function transforms look at single operations.
        and norm.training
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and norm.weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] < x.numel() < _MOST
    )
