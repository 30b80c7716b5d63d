"""Orders for actors, and which of those that wait an actor takes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewfed import tree
from fewfed.engine.executors.ray.cargo import packed
from fewfed.tree import Tree


@dataclass(eq=False)
class Order:
    """One piece of work for an actor: the clients of a shard, or part of a model's scoring."""

    index: int
    """Its place among all: answers are given back in this order."""
    message: dict[str, Any]
    arrays: Tree
    common: Any
    """The place in Ray's store of what is the same for many orders, which the message calls by a number."""
    home: int
    """The actor it belongs to, counted round."""
    weight: float
    """How long it takes, compared with others."""
    number: Callable[[], int] = lambda: 0
    """Behind which number files may be numbered: another one each time the order is sent."""
    attempts: int = 0
    """Actors that died, or were stuck, with it."""
    whole: Order | None = None
    """Of the order for a single client, the one for many that it was taken out of."""
    found: dict[int, bytes | str] = field(default_factory=dict)
    """Of an order for many that was split up, what came of each client."""

    @property
    def clients(self) -> list[int]:
        found: list[int] = self.message["clients"]
        return found

    @property
    def name(self) -> str:
        return ", ".join(map(str, self.clients)) or "evaluation"

    @property
    def nbytes(self) -> int:
        return tree.nbytes(self.arrays)

    def content(self) -> bytes:
        """The order as it is sent."""
        return packed({**self.message, "after": self.number()}, self.arrays)

    def singles(self) -> list[Order]:
        """The same clients one by one, each with its packet as it is: an actor that dies again takes one along."""
        return [
            Order(
                self.index,
                {**self.message, "clients": [client], "whole": True},
                _only(self.arrays, client),
                self.common,
                self.home,
                self.weight / len(self.clients),
                self.number,
                whole=self,
            )
            for client in self.clients
        ]


def next_for(actor: int, actors: int, waiting: Sequence[Order]) -> Order:
    """What an actor without work takes: the heaviest order of its own, or of the actor that has the most to do."""
    loads: dict[int, float] = {}
    for order in waiting:
        loads[order.home % actors] = loads.get(order.home % actors, 0.0) + order.weight
    whose = actor if actor in loads else max(loads, key=lambda home: loads[home])
    return max((order for order in waiting if order.home % actors == whose), key=lambda order: order.weight)


def _only(arrays: Tree, client: int) -> Tree:
    own = arrays.get("personal", {}).get(str(client))
    return {} if own is None else {"personal": {str(client): own}}
