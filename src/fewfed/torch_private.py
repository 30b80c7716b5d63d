"""Everything that fewfed uses of torch without torch promising to keep it.

Gathered here so that a new release of torch is looked at in one place; pyproject.toml bounds releases because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as Dropout
from torch.optim.adam import adam
from torch.optim.adamw import adamw

__all__ = [
    "BatchNorm",
    "Dropout",
    "adam",
    "adamw",
    "changes_of",
    "children_of",
    "few_compilations",
    "foreach_add",
    "foreach_add_",
    "foreach_addcdiv_",
    "foreach_addcmul_",
    "foreach_copy_",
    "foreach_div_",
    "foreach_lerp_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sqrt",
    "foreach_sub",
    "foreach_zero_",
    "has_forward",
    "is_transformed",
    "is_watched",
    "places_of",
    "recorded",
    "sequence_of",
    "transforming",
]

# One call for a list of tensors: the functions torch's own optimisers are made of.
foreach_add = torch._foreach_add
foreach_add_ = torch._foreach_add_
foreach_addcdiv_ = torch._foreach_addcdiv_
foreach_addcmul_ = torch._foreach_addcmul_
foreach_copy_ = torch._foreach_copy_
foreach_div_ = torch._foreach_div_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_sqrt = torch._foreach_sqrt
foreach_sub = torch._foreach_sub
foreach_zero_ = torch._foreach_zero_


def transforming() -> bool:
    """Whether this code runs inside a function transform (`vmap`, `grad`), which sees single operations only."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_transformed(value: Tensor) -> bool:
    """Whether a tensor stands for several, or is being differentiated, inside a function transform."""
    return torch._C._functorch.is_functorch_wrapped_tensor(value)


def places_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dictionaries in which a module keeps its own parameters and buffers."""
    return module._parameters, module._buffers


def changes_of(value: object) -> int:
    """How often a tensor has been changed in place; 0 for what is none."""
    return value._version if isinstance(value, Tensor) else 0


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The children of a module by name; one that is there twice comes twice, which `named_children` leaves out."""
    return ((name, child) for name, child in module._modules.items() if child is not None)


def has_forward(module: nn.Module) -> bool:
    """Whether a module says how it is run."""
    return type(module).forward is not nn.Module.forward


def sequence_of(stages: Mapping[str, nn.Module]) -> nn.Sequential:
    """An `nn.Sequential` whose children may have any name, also one of its own functions."""
    made = nn.Sequential()
    made._modules.update(stages)
    return made


def is_watched(module: nn.Module) -> bool:
    """Whether somebody sees what goes into a module or comes out of it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def recorded(function: Callable[..., Any], *example: Tensor) -> Callable[..., Any]:
    """The operations of a function of tensors as a graph; what it changes in place is changed at the end."""
    from torch.fx.experimental.proxy_tensor import make_fx  # Loads the compiler's front end, which few runs need.

    graph: Callable[..., Any] = make_fx(torch.func.functionalize(function, remove="mutations"))(*example)
    return graph


@contextmanager
def few_compilations(most: int) -> Iterator[None]:
    """Compile a function inside at most so often; sizes stay symbols, and equal ones different symbols."""
    import torch._dynamo.config as compiling  # These load the compiler, which few runs need.
    import torch.fx.experimental._config as shaping

    with compiling.patch(recompile_limit=most), shaping.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield
