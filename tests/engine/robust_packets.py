"""Packets of a phase that averages a model, sums controls and shares rows, for tests of robust combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.engine.robust.combiner import DefendedCombiner
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.parts import Gathered
from fewfed.engine.robust.rule import Rule
from fewfed.method import Combined, Method
from fewfed.phase import Combine, Phase, Role, Upload
from fewfed.tree import Tree

MODEL = {"model": Upload(Combine.MEAN, Role.MODEL)}
CONTROL = {"control": Upload(Combine.SUM, Role.CONTROL)}


def phase_of(**uploads: Upload) -> Phase:
    return Phase("train", Method(), 1, uploads or MODEL)


def model(weights: Any, buffers: Any = None) -> Tree:
    """A model's tree of one array of weights, and one kept beside them."""
    beside = {} if buffers is None else {"mean": torch.as_tensor(buffers, dtype=torch.float32)}
    return {"params": {"w": torch.as_tensor(weights, dtype=torch.float32)}, "buffers": beside}


def packets(*arrays: Tree, weights: Sequence[float] | None = None) -> tuple[Packet, ...]:
    return tuple(
        Packet(0, "train", client, 1.0 if weights is None else weights[client], each)
        for client, each in enumerate(arrays)
    )


def combined(
    defence: Defence | Rule,
    sent: Sequence[Packet],
    *,
    phase: Phase | None = None,
    shared: Tree | None = None,
    invited: int | None = None,
) -> tuple[Combined, DefendedCombiner]:
    """What a defence makes of some packets, as the round loop asks for it."""
    made = defence if isinstance(defence, Defence) else Defence(defence)
    found = DefendedCombiner(made, phase or phase_of(), 100, shared or {}, len(sent) if invited is None else invited)
    for packet in sent:
        found.add(packet)
    return found.finish(), found


def gathered(sent: Sequence[Packet], phase: Phase | None = None, shared: Tree | None = None) -> Gathered:
    return Gathered(phase or phase_of(), shared or {}, tuple(sent))


def as_rows(trees: Sequence[Tree]) -> np.ndarray:
    """Every tree as one row of numbers in double precision."""
    return np.stack([np.concatenate([leaf.double().numpy().ravel() for _, leaf in tree.leaves(one)]) for one in trees])
