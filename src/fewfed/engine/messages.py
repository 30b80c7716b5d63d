"""What the main process and its workers tell each other about turns: outcomes as JSON and arrays, bundles of both."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.job import Done, Failed, Outcome
from fewfed.tree import Tree

_PLACES = "places"


def report_of(outcome: Outcome) -> tuple[dict[str, Any], Tree]:
    """An outcome to be sent."""
    if isinstance(outcome, Failed):
        return {"failed": outcome.reason}, {}
    return (
        {"weight": outcome.weight, "steps": outcome.steps, "terms": outcome.terms},
        {"upload": outcome.upload, "state": outcome.state},
    )


def outcome_of(client: int, phase: str, report: dict[str, Any], arrays: Tree) -> Outcome:
    """An outcome as it was received."""
    if "failed" in report:
        return Failed(client, phase, report["failed"])
    upload, state = arrays.get("upload", {}), arrays.get("state", {})
    return Done(client, upload, state, report["weight"], report["steps"], report["terms"])


def packed(trees: Sequence[Tree]) -> Tree:
    """Many trees as one array a type of number, and one that says what lies where.

    A message's header names every array it carries and must fit into a socket's buffer: a bundle of large networks
    would not, leaf by leaf.
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
