"""A client's context without its rows: for functions whose result must not depend on any row by itself."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from fewfed.errors import ConfigError
from fewfed.method import Batch, Context
from fewfed.tree import Tree


class Hidden:
    """Stands for rows, or for what is counted of them. How many there are may be asked; everything else is refused."""

    def __init__(self, what: str, why: str, rows: Any = ()) -> None:
        self._what, self._why, self._rows = what, why, rows

    def __len__(self) -> int:
        return len(self._rows)

    def refuse(self, *_: object) -> NoReturn:
        raise ConfigError(f"{self._why}, but its method looks at {self._what} of the client besides")

    __getattr__ = __getitem__ = __iter__ = __contains__ = __bool__ = __int__ = __float__ = __index__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = refuse

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> NoReturn:
        raise ConfigError("a method looks at rows, or counts of them, that are hidden from it")


def blind(ctx: Context, why: str) -> Context:
    """The context with rows and class counts hidden; their number is not. `why` begins the refusal."""
    hidden: dict[str, Any] = {"data": Hidden("rows", why, ctx.data), "counts": Hidden("class counts", why)}
    return dataclasses.replace(ctx, **hidden)


def refuse_hidden(values: Tree) -> None:
    """Raise where what was hidden is handed on as it is."""
    for value in values.values():
        if isinstance(value, Hidden):
            value.refuse()
        if isinstance(value, dict):
            refuse_hidden(value)


def without_rows(batch: Batch, why: str) -> Batch:
    """A batch of which only the draws can be seen."""
    x: Any = Hidden("rows of the batch", why, batch.x)
    y: Any = Hidden("labels of the batch", why, batch.y)
    return batch._replace(x=x, y=y)
