"""Labels: which classes has a site, and how many rows of each, from what it sent?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.phase import Phase, Role
from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.imitated_sites import played
from fewfed.privacy.attacks.label_reading import Guess, Learned, Marks, Reading, declared, overlap
from fewfed.privacy.attacks.one_step import head_bias, label_counts, one_steps
from fewfed.tree import Tree

_SITES = 30
"""Sites that the attacker plays to learn what labels do to what is sent."""
_LEAST_SITES = 24
"""With fewer, slices fit by accident."""
_LEAST_ROWS = 20
"""Of the attacker: sites that all hold the same few rows tell rows apart, not classes."""
_DRAWS = 10


class Labels:
    """Read where they are sent, from entries that did not move, by a regression, from the gradient of one step."""

    name = "labels"
    title = "which classes has a site, and how many rows of each?"

    def why_not(self, case: Case) -> str:
        if not case.job.task.classes:
            return "labels of this task are no classes"
        if not _last(case):
            return "no client sent anything of which labels could be read"
        return ""

    def findings(self, case: Case, tell: Callable[[str], None]) -> list[Finding]:
        found = []
        for exchanged in _last(case):
            tell(f"phase '{exchanged.phase}' of round {exchanged.round}")
            truth = torch.stack([case.job.federation.counts(client).cpu() for client in sorted(exchanged.packets)])
            for variant, holds, reading in _readings(case, exchanged):
                guesses = [reading[client] for client in sorted(exchanged.packets)]
                found.append(_finding(case, exchanged, variant, holds, judged(guesses, truth)))
        return found


def _last(case: Case) -> list[Exchanged]:
    """Of every phase in which clients hand something over the last exchange that was recorded."""
    by_phase: dict[str, Exchanged] = {}
    for exchanged in case.exchanges():
        uploads = case.phase(exchanged.round, exchanged.phase).uploads.values()
        if (
            any(upload.role is not Role.SCORE for upload in uploads)
            and exchanged.packets
            and min(exchanged.packets) >= 0
        ):
            by_phase[exchanged.phase] = exchanged
    return list(by_phase.values())


def _readings(case: Case, exchanged: Exchanged) -> list[tuple[str, str, Reading]]:
    """Every way that applies: its name, what the attacker holds, its guess for every client."""
    classes, phase, packets = case.job.task.classes, case.phase(exchanged.round, exchanged.phase), exchanged.packets
    found: list[tuple[str, str, Reading]] = []
    direct = {client: declared(phase, packet, classes) for client, packet in packets.items()}
    known = {client: guess for client, guess in direct.items() if guess is not None}
    if len(known) == len(packets):
        found.append(("sent as they are", "nothing", known))
    found += _one_step(case, exchanged)
    if not any(not upload.rows for upload in phase.uploads.values()) or len(case.held) < _LEAST_ROWS:
        return found
    sites = played(case, exchanged, case.held, max(_LEAST_SITES, 2 * classes, int(_SITES * case.effort)))
    broadcast = exchanged.broadcast
    holds = "rows of the same kind that nobody trained on, the method's own code"
    if not sites:
        return found
    marks = Marks.found(phase, broadcast, sites, classes)
    if marks is not None:
        reading = {client: marks.read(phase, broadcast, packet) for client, packet in packets.items()}
        found.append(("entries that only their class moves", holds, reading))
    learned = Learned.fitted(phase, broadcast, sites, classes)
    if learned is not None:
        reading = {client: learned.read(phase, broadcast, packet, classes) for client, packet in packets.items()}
        found.append((f"learnt from {len(sites)} sites played by the attacker", holds, reading))
    return found


def _one_step(case: Case, exchanged: Exchanged) -> list[tuple[str, str, Reading]]:
    """The gradient of the last bias, where all clients took a single step of plain SGD."""
    steps, classes = one_steps(case, exchanged), case.job.task.classes
    if len(steps) < len(exchanged.packets) or any(step.is_signs for step in steps):
        return []
    bias = head_bias(steps[0].gradient, classes)
    if not bias:
        return []
    found = {}
    for step in steps:
        likely = usual_probability(case, step.start, step.rows)
        counts = label_counts(step.gradient[bias], likely, step.rows)
        found[step.client] = Guess(counts > 0, counts.double() / counts.sum())
    return [
        (
            "gradient of the last bias, one step",
            "rows of the same kind that nobody trained on, how many rows a batch has",
            found,
        )
    ]


def usual_probability(case: Case, model: Tree, batch: int) -> Tensor:
    """What the model the clients begin with thinks of other rows, on average, in batches like theirs."""
    rows, random = case.held, torch.Generator().manual_seed(case.seed)
    found = []
    with torch.no_grad():
        for _ in range(_DRAWS):
            picked = torch.randint(len(rows), (batch,), generator=random).to(rows.x.device)
            said = case.job.net.apply(tree.to(tree.clone(model), rows.x.device), rows.x[picked])
            found.append((said[0] if isinstance(said, tuple) else said).double().softmax(1).mean(0).cpu())
    return torch.stack(found).mean(0)


def judged(guesses: list[Guess], truth: Tensor) -> tuple[Measure, ...]:
    """How right some guesses are; `truth`: rows of each class at each client. Chance is the better of two guesses
    without looking: that everybody has all classes, or what is most common."""
    present, count = truth > 0, len(truth)
    guessed = torch.stack([guess.present for guess in guesses])
    exact = int((guessed == present).all(1).sum())
    common = Counter(tuple(row) for row in present.tolist()).most_common(1)[0]
    blind = max(
        float(overlap(torch.tensor(fixed).expand_as(present), present).mean())
        for fixed in (common[0], [True] * truth.shape[1])
    )
    shared = overlap(guessed, present)
    measures = [
        Measure("label sets exactly right", exact / count, *intervals.of_share(exact, count), count, common[1] / count),
        Measure(
            "overlap of label sets (Jaccard)",
            float(shared.mean()),
            *intervals.of_mean(shared, least=0.0, most=1.0),
            count,
            blind,
        ),
    ]
    told = [guess.shares for guess in guesses]
    if all(shares is not None for shares in told):
        shares = truth.double() / truth.sum(1, keepdim=True).clamp(min=1)
        errors = 0.5 * (torch.stack([each for each in told if each is not None]) - shares).abs().sum(1)
        chance = float(0.5 * (shares.mean(0) - shares).abs().sum(1).mean())
        what = "wrong part of the label shares (total variation)"
        measures.append(
            Measure(
                what,
                float(errors.mean()),
                *intervals.of_mean(errors, least=0.0, most=1.0),
                count,
                chance,
                larger_leaks=False,
            )
        )
    return tuple(measures)


def _finding(case: Case, exchanged: Exchanged, variant: str, holds: str, measures: tuple[Measure, ...]) -> Finding:
    phase: Phase = case.phase(exchanged.round, exchanged.phase)
    raw = all(upload.combine.seen_raw for upload in phase.uploads.values())
    who = "the server" if raw else "the server, without secure aggregation"
    sees = f"each client's packet of phase '{exchanged.phase}' and what was broadcast"
    return Finding("labels", variant, Threat(who, sees, holds), exchanged.round, exchanged.phase, measures)
