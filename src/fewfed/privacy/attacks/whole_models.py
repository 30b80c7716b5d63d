"""Whole models of a run's network in what was sent, found by their entries and not by anybody's name for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.packet import Packet
from fewfed.network import Network
from fewfed.phase import Phase, Role
from fewfed.privacy.attacks.case import Exchanged
from fewfed.tree import Tree

_BATCH = 1000
"""Rows that go through a network at once."""


def model_in(sent: Mapping[str, Any], net: Network) -> Tree | None:
    """The first whole model of the network in a tree; None where there is none.

    Every parameter must be there. Running statistics that somebody keeps for itself are those the network began with.
    """
    own = net.model()
    shapes = {name: leaf.shape for name, leaf in own["params"].items()}
    for found in _parts(sent):
        params, buffers = found.get("params"), found.get("buffers", {})
        if isinstance(params, dict) and {name: _shape(leaf) for name, leaf in params.items()} == shapes:
            known = {name: leaf for name, leaf in buffers.items() if _shape(leaf) == _shape(own["buffers"].get(name))}
            return {"params": params, "buffers": {**own["buffers"], **known}}
    return None


def _shape(leaf: Any) -> torch.Size | None:
    return leaf.shape if isinstance(leaf, Tensor) else None


def _parts(sent: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield sent
    for value in sent.values():
        if isinstance(value, dict):
            yield from _parts(value)


def uploaded_model(packet: Packet, phase: Phase, net: Network) -> Tree | None:
    """The whole model that a client handed over; None where it handed over none."""
    sent = {
        name: packet.arrays[name]
        for name, upload in phase.uploads.items()
        if upload.role is Role.MODEL and name in packet.arrays
    }
    return model_in(sent, net)


def last_broadcast(exchanges: Sequence[Exchanged], net: Network) -> tuple[int, Tree] | None:
    """The number of the last exchange in which everybody received a whole model, and the model."""
    for number in reversed(range(len(exchanges))):
        model = model_in(exchanges[number].broadcast, net)
        if model is not None:
            return number, model
    return None


def outputs(job: Job, model: Tree, x: Tensor, device: torch.device) -> Tensor:
    """What a model says of some inputs, in double precision."""
    placed = tree.to(model, device)
    with torch.no_grad():
        parts = [
            job.net.apply(placed, job.method.presented(placed, part.to(device)), train=False)
            for part in torch.split(x, _BATCH)
        ]
        return torch.cat([part[0] if isinstance(part, tuple) else part for part in parts]).double().cpu()


def losses(job: Job, model: Tree, rows: Examples, device: torch.device) -> Tensor:
    """The task's loss of every row, in double precision: in single precision confident rows are all alike."""
    said, y = outputs(job, model, rows.x, device), rows.y.cpu()
    found: Tensor = torch.func.vmap(lambda one, label: job.task.loss(one[None], label[None]))(said, y)
    return found
