"""A device that is not there: its tensors are ordinary ones behind a mark, and mixing them with others is an error.

On a machine without a GPU this finds what only a GPU would: a tensor that was left on the host. The device calls itself
`meta`, the only one beside `cpu` that every build of torch knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

AWAY = torch.device("meta")


class Away(Tensor):
    """A tensor that says it is on the other device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Away:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=AWAY, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Away({self.inner!r})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Made(TorchFunctionMode):
    """`torch.tensor` writes its numbers where no dispatch sees it: they are written here and sent there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and kwargs.get("device") is not None:
            return torch.tensor(*args, **{**kwargs, "device": None}).to(kwargs["device"])
        return function(*args, **kwargs)


def _computed(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    there, others = [], []
    for leaf in tree_flatten((args, kwargs))[0]:
        if isinstance(leaf, Away):
            there.append(leaf)
        elif isinstance(leaf, Tensor) and leaf.dim() > 0:
            others.append(leaf)
    name = str(function)
    asked = kwargs.get("device")
    copies = name.startswith(("aten._to_copy", "aten.copy_", "aten._pin_memory"))
    # Numbers of places may stay on the host, as with a GPU.
    picks = name.startswith(("aten.index.Tensor", "aten.index_put", "aten._index_put"))
    if there and others and not copies and not (picks and isinstance(args[0], Away)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found two devices, in {name}")
    away = bool(there) if asked is None else torch.device(asked) == AWAY
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(lambda one: one.inner if isinstance(one, Away) else one, (args, kwargs))
    result = function(*plain_args, **plain_kwargs)
    known = {id(one.inner): one for one in there}  # What is changed in place stays the same tensor.

    def marked(one: Any) -> Any:
        if type(one) is not Tensor:
            return one
        return known[id(one)] if id(one) in known else Away(one) if away else one

    return tree_map(marked, result)


@contextmanager
def pretended() -> Iterator[torch.device]:
    """Within, tensors may be sent to the device that is handed out."""
    with _Made(), _Pretending():
        yield AWAY
