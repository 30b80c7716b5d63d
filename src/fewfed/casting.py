"""Weights for reduced precision, cast together: one operation for a network instead of one a layer and direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def autocasting() -> bool:
    """Whether anything may have to be cast: cheap to ask on every pass."""
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def cast_weights(params: Mapping[str, Tensor], keys: Iterable[str]) -> Mapping[str, Tensor]:
    """The named parameters as autocast would cast them: matrices and kernels in its type, vectors left as they are.

    Without autocast, and inside function transforms (which know no operations on lists), nothing is changed.
    """
    chosen = [key for key in dict.fromkeys(keys) if params[key].dim() > 1]
    first = params[chosen[0]] if chosen else None
    if first is None or not torch.is_autocast_enabled(first.device.type) or _transforming():
        return params
    dtype = torch.get_autocast_dtype(first.device.type)
    cast = _CastTogether.apply(dtype, *(params[key] for key in chosen))  # type: ignore[no-untyped-call]
    return {**params, **dict(zip(chosen, cast, strict=True))}


def _transforming() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.types = [weight.dtype for weight in weights]
        return tuple(_copies(weights, [dtype] * len(weights)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_copies(grads, ctx.types)


def _copies(values: tuple[Tensor, ...], types: list[torch.dtype]) -> list[Tensor]:
    made = [torch.empty_like(value, dtype=dtype) for value, dtype in zip(values, types, strict=True)]
    torch._foreach_copy_(made, list(values))
    return made
