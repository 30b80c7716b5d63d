"""Gradients in what was sent: of a client that took a single step they can be read off its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.engine.packet import Packet
from fewfed.engine.turn import Member, context_of
from fewfed.phase import Role
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.whole_models import model_in
from fewfed.tree import Tree

_TINY = 1e-12


@dataclass(frozen=True)
class OneStep:
    """One client's step."""

    client: int
    start: Tree
    """The model it began with."""
    gradient: dict[str, Tensor]
    """Of the parameters it handed over: exact for plain and momentum SGD, else what Adam makes of it, nearly signs."""
    is_signs: bool
    rows: int
    """Of its batch."""


def one_steps(case: Case, exchanged: Exchanged) -> list[OneStep]:
    """Of every recorded client that took one step in this exchange and handed over a model or a change of one."""
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    training = case.job.training_of(phase)
    start = model_in(exchanged.broadcast, case.job.net)
    if start is None:
        return []
    lr, decay = training.lr_at(clock.round), 0.0 if training.optimizer == "adamw" else training.weight_decay
    found = []
    for client, packet in sorted(exchanged.packets.items()):
        change = _change(case, exchanged, packet, start) if packet.steps == 1 else {}
        if client >= 0 and change:
            plain = training.optimizer == "sgd"
            gradient = {
                name: -value.double() / lr - (decay * start["params"][name].double() if plain else 0.0)
                for name, value in change.items()
            }
            found.append(OneStep(client, start, gradient, not plain, len(batch_of(case, exchanged, client))))
    return found


def batch_of(case: Case, exchanged: Exchanged, client: int) -> Examples:
    """The rows of a client's only step: the truth, of which an attacker is told how many there are. Flips and fresh
    noise are not in them."""
    phase, clock, job = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round), case.job
    member = Member(client, exchanged.personal.get(client, {}), job.method.client_init(job.setup))
    ctx = context_of(job, phase, clock, exchanged.broadcast, member)
    data = phase.does.data(ctx)
    (rows,) = ctx.plan.batches(clock.round, phase.name, client, len(data), phase.epochs)
    return data.rows(rows.to(data.y.device))


def _change(case: Case, exchanged: Exchanged, packet: Packet, start: Tree) -> dict[str, Tensor]:
    """By how much each parameter that was handed over moved."""
    phase = case.phase(exchanged.round, exchanged.phase)
    found: dict[str, Tensor] = {}
    for name, upload in phase.uploads.items():
        sent = packet.arrays.get(name, {})
        params = sent.get("params", {}) if isinstance(sent, dict) else {}
        for key, value in params.items() if upload.role in (Role.MODEL, Role.UPDATE) else ():
            own = start["params"].get(key)
            if isinstance(value, Tensor) and own is not None and own.shape == value.shape:
                found[key] = value.double() - (own.double() if upload.role is Role.MODEL else 0.0)
    return found


def head_bias(params: dict[str, Tensor], classes: int) -> str:
    """The bias of the last layer that scores classes; empty where there is none."""
    found = ""
    for name, value in params.items():
        weight = params.get(name.removesuffix("bias") + "weight")
        if name.endswith("bias") and weight is not None and weight.dim() == 2 and value.shape == (classes,):
            found = name if weight.shape[0] == classes else found
    return found


def label_counts(bias: Tensor, probability: Tensor, rows: int) -> Tensor:
    """How many rows of each class are in a batch, from the gradient of the last bias, which is the mean over rows of
    probability minus one-hot label; `probability`: the mean one, of the batch or, not knowing it, of other rows.

    Whole numbers that sum to `rows`. Of a single row it needs no probability: the only negative entry is its class
    (iDLG, Zhao et al. 2020).
    """
    if rows == 1:
        return torch.nn.functional.one_hot(bias.argmin(), len(bias))
    wanted = (rows * (probability.double() - bias.double())).clamp(min=0)
    wanted = torch.where(bias < 0, wanted.clamp(min=1 - _TINY), wanted)  # Only rows of a class make its entry negative.
    counts = wanted.floor().long()
    while int(counts.sum()) > rows:
        over = torch.where(counts > 0, counts - wanted, -torch.inf)
        counts[int(over.argmax())] -= 1
    while int(counts.sum()) < rows:
        counts[int((wanted - counts).argmax())] += 1
    return counts
