"""Membership: was a row among those that were trained on, or sent?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.privacy.attacks import rmia, roc
from fewfed.privacy.attacks.attacker_rows import halves
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Threat
from fewfed.privacy.attacks.member_references import References, trained
from fewfed.privacy.attacks.member_rows import on_rows, sharing
from fewfed.privacy.attacks.member_targets import Target, broadcast, targets, uploads
from fewfed.privacy.attacks.whole_models import losses, outputs
from fewfed.tree import Tree

REFERENCES = (1, 4)
"""How many reference models RMIA is tried with."""
_HOLDS = "rows of the same kind that nobody trained on, the network, the training settings"
_LEAST = 8
"""Test rows: half are the attacker's, half judge it."""
_POPULATION = 2000
"""Rows that candidates are compared with: more change nothing any more."""


class Membership:
    """Loss threshold and RMIA on models, nearest neighbour on shared rows."""

    name = "membership"
    title = "was a row among those trained on, or sent?"

    def why_not(self, case: Case) -> str:
        exchanges = case.exchanges()
        if len(case.held) < _LEAST:
            return f"the attacker holds {len(case.held)} test rows: expected at least {_LEAST}"
        if uploads(case, exchanges) or broadcast(case, exchanges) or sharing(case, exchanges):
            return ""
        return "no whole model and no rows are in the recorded packets: nothing tells members from others"

    def findings(self, case: Case, tell: Callable[[str], None]) -> list[Finding]:
        mine, others = halves(case.held, case.seed)
        exchanges = case.exchanges()
        found: list[Finding] = []
        references: References | None = None
        for kind, sent in (("global model", broadcast(case, exchanges)), ("single uploads", uploads(case, exchanges))):
            chosen = targets(case, sent, others) if sent else []
            if sent and chosen:
                references = references or trained(case, sent.exchanged.round, mine, max(REFERENCES), tell)
                given = [references.first(count) for count in REFERENCES]
                found += _on_models(case, kind, sent.exchanged, chosen, mine, given, tell)
        for exchanged in sharing(case, exchanges)[-1:]:
            tell(f"shared rows of round {exchanged.round}")
            found += on_rows(case, exchanged, others)
        return found


def _on_models(
    case: Case,
    kind: str,
    exchanged: Exchanged,
    suspects: list[Target],
    mine: Examples,
    given: list[References],
    tell: Callable[[str], None],
) -> list[Finding]:
    who, sees = (
        ("whoever gets the model", f"the model broadcast in round {exchanged.round}")
        if kind == "global model"
        else ("the server, without secure aggregation", "each client's model after its own training")
    )
    tell(f"loss threshold on {len(suspects)} model{'s' * (len(suspects) > 1)}, round {exchanged.round}")
    population = mine.rows(torch.arange(min(len(mine), _POPULATION)))
    both = [
        (
            _loss(case, each.model, each.members),
            _loss(case, each.model, each.others),
            _loss(case, each.model, population),
        )
        for each in suspects
    ]
    count = sum(len(inside) for inside, _, _ in both)
    note = roc.left_out(count)

    def finding(variant: str, holds: str, inside: list[Tensor], outside: list[Tensor], said: str = "") -> Finding:
        measured = roc.measures(torch.cat(inside), torch.cat(outside), case.seed)
        told = "; ".join(filter(None, (said, note)))
        name = f"{variant}, {kind}"
        threat = Threat(who, sees, holds)
        return Finding("membership", name, threat, exchanged.round, exchanged.phase, measured, told)

    found = [finding("loss threshold", "the candidate rows", [-each[0] for each in both], [-each[1] for each in both])]
    for references in given:
        scored = [_rmia(case, references, target, population) for target in suspects]
        inside, outside = [each[0] for each in scored], [each[1] for each in scored]
        found.append(
            finding(
                references.variant, _HOLDS, inside, outside, f"reference models trained for {references.epochs} epochs"
            )
        )
    return found


def _loss(case: Case, model: Tree, rows: Examples) -> Tensor:
    return losses(case.job, model, rows, case.device)


def _rmia(case: Case, references: References, target: Target, population: Examples) -> tuple[Tensor, Tensor]:
    """Scores of the members and of the others."""
    groups = (*target.both, population)
    own = [_likely(case, target.model, rows) for rows in groups]
    under = [torch.stack([_likely(case, each, rows) for each in references.models]) for rows in groups]
    usual = rmia.evidence(own[2], under[2], references.seen[:, : len(population)])
    inside, outside = (rmia.evidence(likely, others) for likely, others in zip(own[:2], under[:2], strict=True))
    return rmia.scores(inside, usual), rmia.scores(outside, usual)


def _likely(case: Case, model: Tree, rows: Examples) -> Tensor:
    """How likely a model finds every row; where labels are no classes, from its loss, minus the logarithm of that."""
    said = outputs(case.job, model, rows.x, case.device)
    if case.job.task.classes and said.dim() == 2:
        return rmia.confidence(said, rows.y.cpu())
    return (-_loss(case, model, rows)).exp()
