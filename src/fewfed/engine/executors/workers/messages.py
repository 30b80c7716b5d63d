"""Messages between the main process and its workers about clients' turns: JSON and arrays, for one client or many."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.packet import Packet
from fewfed.tree import Tree

_PLACES = "places"


def written(found: Finished | Failed) -> tuple[dict[str, Any], Tree]:
    """The result of a client's turn as a message: a JSON-able dictionary and arrays."""
    if isinstance(found, Failed):
        return {"failed": found.reason, "cause": found.cause}, {}
    packet = found.packet
    head = {name: getattr(packet, name) for name in ("round", "phase", "sender", "weight")}
    arrays = {"upload": packet.arrays, "state": found.state}
    return {**head, "metrics": dict(packet.metrics)}, {
        **arrays,
        **({"moments": found.moments} if found.moments else {}),
        **({"book": found.book} if found.book else {}),
    }


def read(client: int, phase: str, message: dict[str, Any], arrays: Tree) -> Finished | Failed:
    """The inverse of `written`."""
    if "failed" in message:
        return Failed(client, phase, message["failed"], message["cause"])
    head = {name: message[name] for name in ("round", "phase", "sender", "weight", "metrics")}
    packet = Packet(arrays=arrays.get("upload", {}), **head)
    return Finished(packet, arrays.get("state", {}), arrays.get("moments", {}), arrays.get("book", {}))


def packed(trees: Sequence[Tree]) -> Tree:
    """Many trees as one array for each type of number, and one that says where each leaf is.

    A message's header names every array it carries and must fit into a socket's buffer. With single leaves, the header
    of a bundle of large networks would not fit.
    """
    places: list[tuple[list[tuple[str, str, list[int]]], list[str]]] = []
    parts: dict[str, list[Tensor]] = {}
    for one in trees:
        leaves = []
        for path, leaf in tree.leaves(one):
            kind = str(leaf.dtype)
            leaves.append((path, kind, list(leaf.shape)))
            parts.setdefault(kind, []).append(leaf.detach().reshape(-1))
        places.append((leaves, list(tree.hollows(one))))
    written = torch.frombuffer(bytearray(json.dumps(places).encode()), dtype=torch.uint8)
    return {**{kind: torch.cat(flat) for kind, flat in parts.items()}, _PLACES: written}


def unpacked(arrays: Tree) -> list[Tree]:
    """The trees again, as views."""
    taken = dict.fromkeys(arrays, 0)
    trees = []
    for leaves, empty in json.loads(bytes(arrays[_PLACES].numpy())):
        flat: dict[str, Tensor] = {}
        for path, kind, shape in leaves:
            first = taken[kind]
            taken[kind] = first + math.prod(shape)
            flat[path] = arrays[kind][first : taken[kind]].view(shape)
        trees.append(tree.from_leaves(flat, empty))
    return trees
