"""Whether a network really computes with the weights it is given, as the user's module would with the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.modules.stage_check import few_rows

if TYPE_CHECKING:
    from fewfed.network import Network


def refuse_hidden_weights(net: Network, example: Tensor) -> None:
    """Raise where a module computes with more than its parameters and buffers, or changes a buffer unseen: whatever
    clients train, it would then go on with what it has hidden."""
    rows = few_rows(example)
    for train in (False, True):
        model = net.model()
        model["params"] = {name: 0.9 * value + 0.01 for name, value in model["params"].items()}
        module = net.module_with(model).train(train)
        with _same_draws():
            ours = net.apply(model, rows.clone(), train=train)
        with _same_draws():
            theirs = module(rows.clone())
        if not _close(ours, theirs):
            raise ConfigError(
                f"network '{net.name}' does not compute with its parameters alone: expected a module whose weights are "
                "all parameters and buffers, and that keeps no copies of them"
            )
        buffers = dict(module.named_buffers(remove_duplicate=False))
        for key, value in model["buffers"].items():
            place = net.original_names[key]
            if place in buffers and not _close(value, buffers[place]):
                raise ConfigError(
                    f"network '{net.name}' replaces its buffer '{place}' when it is run: expected a change in place, "
                    f"as with self.{place.rpartition('.')[2]}.copy_(...)"
                )


@contextmanager
def _same_draws() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        yield


def _close(a: Tensor, b: Tensor) -> bool:
    """Up to rounding: which kernel is used may depend on what asks for gradients."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
