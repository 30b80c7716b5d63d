"""Membership from shared rows: is what a candidate would have been sent as among what was sent?"""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.privacy.attacks import roc
from fewfed.privacy.attacks.attacker_rows import matched
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Threat
from fewfed.privacy.shared_rows import imitated, row_upload, rows_in

_MOST_CANDIDATES = 300
_COPIES = 256
"""Rows of a site that holds nothing but the candidate: more than any grouping asks for."""


def sharing(case: Case, exchanges: tuple[Exchanged, ...]) -> list[Exchanged]:
    """Exchanges in which rows were sent by clients that did not train in the same phase."""
    found = []
    for exchanged in exchanges:
        phase = case.phase(exchanged.round, exchanged.phase)
        rows = row_upload(phase)
        if rows and not phase.epochs and any(rows_in(packet.arrays, rows) for packet in exchanged.packets.values()):
            found.append(exchanged)
    return found


def on_rows(case: Case, exchanged: Exchanged, others: Examples) -> list[Finding]:
    """Members are the rows behind what was sent."""
    shared = case.shared_rows(exchanged)
    behind = torch.unique(shared.origins[shared.present])
    held = shared.rows.rows(behind.to(shared.rows.y.device))
    inside, outside = matched(held, others, case.job.task.classes, case.seed)
    if not len(inside):
        return []
    most = max(2, int(_MOST_CANDIDATES * case.effort))
    both = (held.rows(inside[:most]), others.rows(outside[:most]))
    sent = shared.sent.flatten(1).cpu().double()
    made = [_as_sent(case, exchanged, rows) for rows in both]
    if made[0] is None or made[1] is None:
        return []
    members, strangers = -_nearest(made[0], sent), -_nearest(made[1], sent)
    # What the same attacker gets from inputs that are sent as they are.
    x = shared.rows.x[behind.to(shared.rows.x.device)].flatten(1).cpu().double()
    raw = roc.area(*(-_nearest(rows.x.flatten(1).cpu().double(), x) for rows in both))[0]
    measured = roc.measures(members, strangers, case.seed, raw)
    threat = Threat(
        "the server, and every site that receives the rows",
        f"the rows sent in phase '{exchanged.phase}' of round {exchanged.round}",
        "the candidate rows, the method's own code",
    )
    variant = "nearest shared row"
    said = roc.left_out(len(strangers))
    return [Finding("membership", variant, threat, exchanged.round, exchanged.phase, measured, said)]


def _as_sent(case: Case, exchanged: Exchanged, rows: Examples) -> Tensor | None:
    """What a site would send that holds copies of one candidate alone; the mean, since they differ by noise at most.
    None where such a site sends nothing."""
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    personal = next(iter(exchanged.personal.values()), {})
    shared, personal = tree.to(exchanged.broadcast, rows.x.device), tree.to(personal, rows.x.device)
    found = []
    for row in range(len(rows)):
        copies = rows.rows(torch.full((_COPIES,), row, device=rows.y.device))
        made = imitated(case.job, phase, clock, shared, copies, 1, personal=personal, seed=case.seed)
        if not len(made):
            return None
        found.append(made.sent.flatten(1).cpu().double().mean(0))
    return torch.stack(found)


def _nearest(rows: Tensor, sent: Tensor) -> Tensor:
    return torch.cat(
        [
            torch.cdist(part, sent, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
            for part in torch.split(rows, 256)
        ]
    )
