"""Models that were sent, with rows they were trained on and rows they were not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fewfed.data.examples import Examples
from fewfed.phase import Role
from fewfed.privacy.attacks.attacker_rows import matched
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.whole_models import last_broadcast, uploaded_model
from fewfed.tree import Tree

_MOST_ROWS = 20_000
_MOST_MODELS = 20


@dataclass(frozen=True)
class Suspect:
    """A model, and the rows that went into it."""

    client: int
    """Whose model it is; -1 for everybody's."""
    model: Tree
    held: Examples


@dataclass(frozen=True)
class Sent:
    """Models of one exchange."""

    exchanged: Exchanged
    suspects: list[Suspect]


@dataclass(frozen=True)
class Target:
    """A model and rows it was, and was not, trained on."""

    model: Tree
    members: Examples
    others: Examples

    @property
    def both(self) -> tuple[Examples, Examples]:
        return self.members, self.others


def broadcast(case: Case, exchanges: tuple[Exchanged, ...]) -> Sent | None:
    """The last model that everybody received, and all rows that went into it as far as the record shows."""
    last = last_broadcast(exchanges, case.job.net)
    if last is None:
        return None
    number, model = last
    before = (each for each in exchanges[:number] if _trains(case, each))
    clients = sorted({client for each in before for client in each.packets if client >= 0})
    if not clients:
        return None
    rows = [case.job.federation.examples(client) for client in clients]
    held = Examples(torch.cat([part.x for part in rows]), torch.cat([part.y for part in rows]))
    return Sent(exchanges[number], [Suspect(-1, model, held)])


def uploads(case: Case, exchanges: tuple[Exchanged, ...]) -> Sent | None:
    """The last models that single clients handed over, each with the rows of its client."""
    for exchanged in reversed(exchanges):
        phase = case.phase(exchanged.round, exchanged.phase)
        if not phase.trains_on_clients_rows:
            continue
        models = (
            (client, uploaded_model(packet, phase, case.job.net))
            for client, packet in sorted(exchanged.packets.items())
            if client >= 0
        )
        found = [
            Suspect(client, model, case.job.federation.examples(client))
            for client, model in models
            if model is not None
        ]
        if found:
            return Sent(exchanged, found)
    return None


def _trains(case: Case, exchanged: Exchanged) -> bool:
    phase = case.phase(exchanged.round, exchanged.phase)
    roles = {upload.role for upload in phase.uploads.values()}
    return phase.trains_on_clients_rows and bool(roles & {Role.MODEL, Role.UPDATE})


def targets(case: Case, sent: Sent, others: Examples) -> list[Target]:
    """Models with as many members as others, of the same classes."""
    found: list[Target] = []
    rows = 0
    for each in sent.suspects[:_MOST_MODELS]:
        members, outside = matched(each.held, others, case.job.task.classes, case.seed + 2 + each.client)
        members, outside = members[: _MOST_ROWS - rows], outside[: _MOST_ROWS - rows]
        if len(members):
            found.append(Target(each.model, each.held.rows(members), others.rows(outside)))
            rows += len(members)
    return found
