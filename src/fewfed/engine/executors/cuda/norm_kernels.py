"""GPU kernels of BatchNorm with the following ReLU, for features stored channels last: a matrix of rows by channels.

Sums are taken in float32 in a fixed order, over differences from the channel's first value, so that a large mean costs
no precision.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(pointer, r, c, rows, channels):
    inside = (r < rows)[:, None] & (c < channels)[None, :]
    return tl.load(pointer + r[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32), inside


@triton.jit
def _rectified(by, value):
    return tl.where(by <= 0.0, 0.0, value)  # Written this way, NaN stays NaN, as in torch.


@triton.jit
def _sums(x, shift, c, first, last, rows, channels, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_R):
        value, inside = _tile(x, start + tl.arange(0, BLOCK_R), c, rows, channels)
        apart = tl.where(inside, value - shift[None, :], 0.0)
        total += apart
        squares += apart * apart
    return tl.sum(total, 0), tl.sum(squares, 0)


@triton.jit
def _normalise(
    x, y, weight, bias, mean, rstd, c, first, last, rows, channels,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    scale = tl.load(weight + c, mask=c < channels, other=0.0) * rstd
    shift = tl.load(bias + c, mask=c < channels, other=0.0)
    for start in range(first, last, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        value, inside = _tile(x, r, c, rows, channels)
        value = (value - mean[None, :]) * scale[None, :] + shift[None, :]
        if RELU:
            value = _rectified(value, value)
        tl.store(y + r[:, None] * channels + c[None, :], value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _moments(total, squares, shift, rows, eps):
    apart = total / rows
    variance = tl.maximum(squares / rows - apart * apart, 0.0)
    return shift + apart, variance, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _keep(mean, variance, rstd, means, rstds, running_mean, running_var, c, rows, channels, momentum):
    inside = c < channels
    tl.store(means + c, mean, mask=inside)
    tl.store(rstds + c, rstd, mask=inside)
    old = tl.load(running_mean + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old + momentum * (mean - old), mask=inside)
    old = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_var + c, old + momentum * (variance * (rows / (rows - 1.0)) - old), mask=inside)


@triton.jit
def forward_whole(
    x, y, weight, bias, means, rstds, running_mean, running_var, rows, channels, eps, momentum,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = tl.arange(0, BLOCK_R)
    shift = tl.load(x + c, mask=c < channels, other=0.0).to(tl.float32)
    value, inside = _tile(x, r, c, rows, channels)
    apart = tl.where(inside, value - shift[None, :], 0.0)
    off = tl.sum(apart, 0) / rows
    mean = shift + off
    apart = tl.where(inside, apart - off[None, :], 0.0)
    variance = tl.sum(apart * apart, 0) / rows
    rstd = 1.0 / tl.sqrt(variance + eps)
    _keep(mean, variance, rstd, means, rstds, running_mean, running_var, c, rows, channels, momentum)
    w = tl.load(weight + c, mask=c < channels, other=0.0)
    b = tl.load(bias + c, mask=c < channels, other=0.0)
    value = apart * (w * rstd)[None, :] + b[None, :]
    if RELU:
        value = _rectified(value, value)
    tl.store(y + r[:, None] * channels + c[None, :], value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def forward_sums(x, partial, rows, channels, part, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * part
    shift = tl.load(x + c, mask=c < channels, other=0.0).to(tl.float32)
    last = tl.minimum(first + part, rows)
    total, squares = _sums(x, shift, c, first, last, last, channels, BLOCK_R, BLOCK_C)
    to = partial + tl.program_id(1) * 2 * channels + c
    tl.store(to, total, mask=c < channels)
    tl.store(to + channels, squares, mask=c < channels)


@triton.jit
def _added(partial, c, parts, channels, PARTS: tl.constexpr):
    p = tl.arange(0, PARTS)
    inside = (p < parts)[:, None] & (c < channels)[None, :]
    at = partial + p[:, None] * 2 * channels + c[None, :]
    one = tl.sum(tl.load(at, mask=inside, other=0.0), 0)
    other = tl.sum(tl.load(at + channels, mask=inside, other=0.0), 0)
    return one, other


@triton.jit
def forward_parts(
    x, y, weight, bias, means, rstds, running_mean, running_var, partial, rows, channels, part, parts, eps, momentum,
    RELU: tl.constexpr, PARTS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    shift = tl.load(x + c, mask=c < channels, other=0.0).to(tl.float32)
    total, squares = _added(partial, c, parts, channels, PARTS)
    mean, variance, rstd = _moments(total, squares, shift, rows, eps)
    if tl.program_id(1) == 0:
        _keep(mean, variance, rstd, means, rstds, running_mean, running_var, c, rows, channels, momentum)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, rows)
    _normalise(x, y, weight, bias, mean, rstd, c, first, last, last, channels, RELU, BLOCK_R)


@triton.jit
def _gradient(x, dy, r, c, rows, channels, mean, rstd, weight, bias, RELU: tl.constexpr):
    """The gradient in front of the ReLU, and the normalised value."""
    value, inside = _tile(x, r, c, rows, channels)
    gradient, _ = _tile(dy, r, c, rows, channels)
    apart = tl.where(inside, value - mean[None, :], 0.0)
    if RELU:
        gradient = _rectified(apart * (weight * rstd)[None, :] + bias[None, :], gradient)
    return gradient, apart * rstd[None, :], inside


@triton.jit
def _gradient_sums(
    x, dy, mean, rstd, weight, bias, c, first, last, channels,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    one = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    other = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        gradient, value, _ = _gradient(x, dy, r, c, last, channels, mean, rstd, weight, bias, RELU)
        one += gradient
        other += gradient * value
    return tl.sum(one, 0), tl.sum(other, 0)


@triton.jit
def _to_input(
    x, dy, dx, mean, rstd, weight, bias, one, other, c, first, last, rows, channels,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    scale = (weight * rstd)[None, :]
    for start in range(first, last, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        gradient, value, inside = _gradient(x, dy, r, c, last, channels, mean, rstd, weight, bias, RELU)
        result = scale * (gradient - (one / rows)[None, :] - value * (other / rows)[None, :])
        tl.store(dx + r[:, None] * channels + c[None, :], result.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _known(weight, bias, means, rstds, c, channels):
    inside = c < channels
    return (
        tl.load(means + c, mask=inside, other=0.0),
        tl.load(rstds + c, mask=inside, other=0.0),
        tl.load(weight + c, mask=inside, other=0.0),
        tl.load(bias + c, mask=inside, other=0.0),
    )


@triton.jit
def backward_whole(
    x, dy, dx, weight, bias, means, rstds, dweight, dbias, rows, channels,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = tl.arange(0, BLOCK_R)
    mean, rstd, w, b = _known(weight, bias, means, rstds, c, channels)
    gradient, value, inside = _gradient(x, dy, r, c, rows, channels, mean, rstd, w, b, RELU)
    one = tl.sum(gradient, 0)
    other = tl.sum(gradient * value, 0)
    tl.store(dbias + c, one, mask=c < channels)
    tl.store(dweight + c, other, mask=c < channels)
    result = (w * rstd)[None, :] * (gradient - (one / rows)[None, :] - value * (other / rows)[None, :])
    tl.store(dx + r[:, None] * channels + c[None, :], result.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def backward_sums(
    x, dy, weight, bias, means, rstds, partial, rows, channels, part,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, rstd, w, b = _known(weight, bias, means, rstds, c, channels)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, rows)
    one, other = _gradient_sums(x, dy, mean, rstd, w, b, c, first, last, channels, RELU, BLOCK_R, BLOCK_C)
    to = partial + tl.program_id(1) * 2 * channels + c
    tl.store(to, one, mask=c < channels)
    tl.store(to + channels, other, mask=c < channels)


@triton.jit
def backward_parts(
    x, dy, dx, weight, bias, means, rstds, dweight, dbias, partial, rows, channels, part, parts,
    RELU: tl.constexpr, PARTS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, rstd, w, b = _known(weight, bias, means, rstds, c, channels)
    one, other = _added(partial, c, parts, channels, PARTS)
    if tl.program_id(1) == 0:
        tl.store(dbias + c, one, mask=c < channels)
        tl.store(dweight + c, other, mask=c < channels)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, rows)
    _to_input(x, dy, dx, mean, rstd, w, b, one, other, c, first, last, rows, channels, RELU, BLOCK_R)
