"""Information: how much, in nats, what was sent says about rows and labels, as estimates with their spread."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.estimates import gaussian_information, info_nce, principal
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.label_reading import entries
from fewfed.privacy.attacks.member_rows import sharing
from fewfed.privacy.shared_rows import imitated

LEAST_CLIENTS = 24
"""Half of them teach, half are judged; with n of these no more than log n nats can be seen."""
LEAST_ROWS = 40
_COLUMNS, _SENT = 32, 256
"""Directions of the inputs, and of what is sent, that are looked at."""
_PAIRS = 2000


class Information:
    """Of shared rows about inputs, and of whole messages about label shares."""

    name = "information"
    title = "how many nats what was sent says about rows and labels"

    def why_not(self, case: Case) -> str:
        exchanges = case.exchanges()
        if sharing(case, exchanges) or _messages(case, exchanges):
            return ""
        return (
            f"no rows were sent, and in no phase did {LEAST_CLIENTS} recorded clients or more hand anything over: "
            "fewer give no bound worth the name"
        )

    def findings(self, case: Case, tell: Callable[[str], None]) -> list[Finding]:
        exchanges = case.exchanges()
        found: list[Finding] = []
        for exchanged in sharing(case, exchanges)[-1:]:
            tell(f"shared rows of round {exchanged.round}")
            found += _of_rows(case, exchanged)
        for exchanged in _messages(case, exchanges):
            tell(f"messages of phase '{exchanged.phase}', round {exchanged.round}")
            found.append(_of_messages(case, exchanged))
        return found


def _of_rows(case: Case, exchanged: Exchanged) -> list[Finding]:
    """Fitted to what the attacker makes of its own rows, judged on what was sent."""
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    rows, truth = case.held, case.shared_rows(exchanged)
    personal = tree.to(next(iter(exchanged.personal.values()), {}), rows.x.device)
    count = max(LEAST_ROWS, min(4 * len(rows), int(_PAIRS * case.effort)))
    broadcast = tree.to(exchanged.broadcast, rows.x.device)
    drawn = imitated(case.job, phase, clock, broadcast, rows, count, personal=personal, seed=case.seed)
    own = drawn.part(first_of(drawn.origins)) if len(drawn) else drawn
    threat = Threat(
        "the server, and every site that receives the rows",
        f"the rows sent in phase '{exchanged.phase}' of round {exchanged.round}",
        "rows of the same kind that nobody trained on, the method's own code",
    )
    if len(own) < LEAST_ROWS or len(truth) < 2:
        why = f"not tried: {len(own)} rows of the attacker's own, {len(truth)} sent: expected {LEAST_ROWS} and 2"
        return [Finding("information", "shared rows", threat, exchanged.round, exchanged.phase, (), why)]
    of_x, of_sent = principal(own.sources, _COLUMNS), principal(own.sent, _SENT)
    x, x_new = (each.sources.flatten(1).double().cpu() @ of_x for each in (own, truth))
    sent, sent_new = (each.sent.flatten(1).double().cpu() @ of_sent for each in (own, truth))
    terms = gaussian_information(x, sent, x_new, sent_new)
    what = f"I(input; row sent) in nats, of {x.shape[1]} directions of the input, as if normal"
    measure = Measure(what, float(terms.mean()), *intervals.of_mean(terms), len(terms), 0.0)
    note = f"an estimate, not a bound, fitted to {len(own)} rows of the attacker; interval by resampling rows"
    return [Finding("information", "shared rows", threat, exchanged.round, exchanged.phase, (measure,), note)]


def first_of(origins: Tensor) -> Tensor:
    """Numbers of rows none of whose sources is behind an earlier one: else errors on rows that were left out of a
    regression would be those on rows it knows."""
    met: set[int] = set()
    kept = []
    for number, sources in enumerate(origins.tolist()):
        behind = {source for source in sources if source >= 0}
        if not behind & met:
            kept.append(number)
            met |= behind
    return torch.tensor(kept, dtype=torch.long)


def _messages(case: Case, exchanges: tuple[Exchanged, ...]) -> list[Exchanged]:
    """Of every phase the last exchange in which enough clients handed over something of a fixed size."""
    by_phase = {
        each.phase: each
        for each in exchanges
        if case.job.task.classes
        and len(each.packets) >= LEAST_CLIENTS
        and min(each.packets) >= 0
        and _message(case, each, min(each.packets)).numel()
    }
    return list(by_phase.values())


def _message(case: Case, exchanged: Exchanged, client: int) -> Tensor:
    """How what a client handed over differs from what was broadcast, as one vector."""
    phase = case.phase(exchanged.round, exchanged.phase)
    parts = [
        (value.double() - (0.0 if before is None else before.double())).flatten()
        for _, value, before in entries(phase, exchanged.broadcast, exchanged.packets[client])
        if value.is_floating_point()
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.double)


def _of_messages(case: Case, exchanged: Exchanged) -> Finding:
    clients = sorted(exchanged.packets)
    messages = torch.stack([_message(case, exchanged, client) for client in clients])
    # Only products of messages matter: in the directions in which they differ at all they are as short as clients few.
    messages = messages @ principal(messages, len(clients))
    counts = torch.stack([case.job.federation.counts(client).cpu().double() for client in clients])
    secrets = counts / counts.sum(1, keepdim=True).clamp(min=1)
    order = torch.randperm(len(clients), generator=torch.Generator().manual_seed(case.seed))
    teach, judge = order[: len(order) // 2], order[len(order) // 2 :]
    terms = info_nce(messages[teach], secrets[teach], messages[judge], secrets[judge])
    what = "I(message; label shares) in nats, InfoNCE lower bound"
    measure = Measure(what, float(terms.mean()), *intervals.of_mean(terms), len(terms), 0.0)
    threat = Threat(
        "the server, without secure aggregation",
        f"each client's packet of phase '{exchanged.phase}' and what was broadcast",
        f"the label shares of {len(teach)} other clients, to learn from",
    )
    note = f"no more than log {len(judge)} = {math.log(len(judge)):.2f} nats can be seen with {len(judge)} clients"
    return Finding("information", "messages", threat, exchanged.round, exchanged.phase, (measure,), note)
