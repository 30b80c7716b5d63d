"""Kinds of bad packets: what a broken or hostile client might hand over instead of what was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.tree import Tree

Spoil = Callable[[Packet], Packet]


@dataclass(frozen=True)
class BadKind:
    """A good packet of a phase of FLea becomes a bad one, which is refused for this reason."""

    name: str
    phase: str
    spoil: Spoil
    reason: str


def _arrays(change: Callable[[Tree], Any]) -> Spoil:
    def spoil(packet: Packet) -> Packet:
        arrays = tree.clone(packet.arrays)
        changed = change(arrays)
        return dataclasses.replace(packet, arrays=arrays if changed is None else changed)

    return spoil


def _field(**values: Any) -> Spoil:
    return lambda packet: dataclasses.replace(packet, **values)


def _leaf(change: Callable[[torch.Tensor], torch.Tensor], name: str = "") -> Spoil:
    """The first leaf of the model, or the leaf of this name, is changed."""

    def change_one(arrays: Tree) -> None:
        place = arrays if name else arrays["model"]["params"]
        key = name or next(iter(place))
        place[key] = change(place[key])

    return _arrays(change_one)


def _one(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(leaf: torch.Tensor) -> torch.Tensor:
        leaf.view(-1)[-1] = value
        return leaf

    return change


def _without_a_parameter(arrays: Tree) -> None:
    arrays["model"]["params"].pop(next(iter(arrays["model"]["params"])))


def _with_a_parameter(arrays: Tree) -> None:
    arrays["model"]["params"]["head.extra"] = torch.zeros(3)


def _more_rows(arrays: Tree) -> Tree:
    return {name: leaf.repeat(50, *([1] * (leaf.dim() - 1))) for name, leaf in arrays.items()}


def _flat(arrays: Tree) -> Tree:
    return {"model": torch.zeros(7)}


TRAIN = (
    ("nothing at all", _field(arrays={}), "upload 'model' is missing"),
    (
        "an undeclared upload",
        _arrays(lambda arrays: {**arrays, "rows": torch.zeros(2)}),
        "upload 'rows' is not declared",
    ),
    ("a tensor instead of a tree", _arrays(_flat), "unknown or missing"),
    ("a parameter is missing", _arrays(_without_a_parameter), "unknown or missing"),
    ("a parameter too many", _arrays(_with_a_parameter), "unknown or missing"),
    ("another type", _leaf(torch.Tensor.double), "expected torch.float32"),
    ("whole numbers", _leaf(torch.Tensor.long), "expected torch.float32"),
    ("another shape", _leaf(lambda leaf: leaf.flatten()), "expected torch.float32"),
    ("a transposed kernel", _leaf(lambda leaf: leaf.transpose(0, 1)), "expected torch.float32"),
    ("no numbers in it", _leaf(lambda leaf: leaf[:0]), "expected torch.float32"),
    ("NaN", _leaf(_one(float("nan"))), "holds NaN or infinity"),
    ("infinity", _leaf(_one(float("inf"))), "holds NaN or infinity"),
    ("minus infinity", _leaf(_one(-float("inf"))), "holds NaN or infinity"),
    ("infinities that cancel", _leaf(lambda leaf: _one(float("inf"))(_first(leaf))), "holds NaN or infinity"),
    ("absurdly large numbers", _leaf(_one(-1e30)), "has numbers of 1e+30"),
    ("the largest number there is", _leaf(_one(3.4e38)), "has numbers of 3.4e+38"),
    ("a negative weight", _field(weight=-3.0), "its weight is -3.0"),
    ("no weight", _field(weight=0.0), "its weight is 0.0"),
    ("a weight that is no number", _field(weight=float("nan")), "its weight is nan"),
    ("an infinite weight", _field(weight=float("inf")), "its weight is inf"),
    ("more weight than any client has rows", _field(weight=1e6), "expected a number above 0 and at most 6"),
    ("another client's number", _field(sender=2), "it is of client 2"),
    ("another round", _field(round=40), "round 41"),
    ("another phase", _field(phase="share"), "phase 'share'"),
    ("a metric that is no number", _field(metrics={"steps": 4.0, "loss.task": float("nan")}), "its metric 'loss.task'"),
    ("steps without end", _field(metrics={"steps": float("inf")}), "its metric 'steps'"),
    ("fewer than no steps", _field(metrics={"steps": -5.0}), "its metric 'steps'"),
)

SHARE = (
    ("more rows than any client may send", _arrays(_more_rows), "rows: expected at most"),
    ("features without labels", _arrays(lambda arrays: {"features": arrays["features"]}), "upload 'labels' is missing"),
    ("fewer labels than features", _leaf(lambda leaf: leaf[:-1], "labels"), "different numbers of rows"),
    ("a label that is no class", _leaf(lambda leaf: leaf + 10, "labels"), "expected 0 to 9"),
    ("a label below zero", _leaf(lambda leaf: leaf - 10, "labels"), "expected none below 0"),
    ("labels as fractions", _leaf(torch.Tensor.double, "labels"), "expected torch.int64"),
    ("features of another layer", _leaf(lambda leaf: leaf[:, :1], "features"), "expected torch.float32 (rows"),
    ("one number instead of rows", _leaf(lambda leaf: leaf.sum(), "features"), "expected torch.float32 (rows"),
    ("features with infinity", _leaf(_one(float("inf")), "features"), "holds NaN or infinity"),
)


def _first(leaf: torch.Tensor) -> torch.Tensor:
    leaf.view(-1)[0] = -float("inf")
    return leaf


KINDS = (
    *(BadKind(name, "train", spoil, reason) for name, spoil, reason in TRAIN),
    *(BadKind(name, "share", spoil, reason) for name, spoil, reason in SHARE),
)
