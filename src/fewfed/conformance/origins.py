"""Where shared rows come from: a method that sends rows says which of the client's are behind each, and it is true."""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.conformance.playing import COHORT, ROUNDS
from fewfed.conformance.property import refuse
from fewfed.conformance.reference import Reference
from fewfed.data.examples import Examples
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.loop import PhaseResult, RoundView, run_rounds
from fewfed.engine.turn import Member
from fewfed.privacy.shared_rows import row_upload, sent_by


def are_true(reference: Reference) -> str:
    """One row of a client after another is changed: that matters to the rows sent that name it, and to no other."""
    watch = _Watch()
    run_rounds(reference.job, Sequential(reference.job), [watch], rounds=ROUNDS, cohort=COHORT)
    refuse(watch.problems, "it is known which rows are behind each row that is sent")
    return ""


class _Watch:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def after_round(self, view: RoundView) -> None:
        for result in view.phases:
            if row_upload(result.phase) and not result.phase.epochs:
                client = max(result.combined.clients, key=lambda number: len(view.job.federation.examples(number)))
                self.problems += [f"phase '{result.phase.name}': {text}" for text in _of_client(view, result, client)]


def _of_client(view: RoundView, result: PhaseResult, client: int) -> list[str]:
    job, phase = view.job, result.phase
    data = job.federation.examples(client)
    member = Member(client, phase.does.personal(view.server, client), job.method.client_init(job.setup))

    def sent(rows: Examples) -> tuple[Tensor, Tensor]:
        found = sent_by(job, phase, view.clock, result.shared, member, rows)
        return found.sent, found.origins

    before, origins = sent(data)
    if origins.dim() != 2 or len(origins) != len(before) or origins.dtype != torch.long:
        return [f"'origins' gives {tuple(origins.shape)} for {len(before)} rows"]
    if origins.numel() and not (int(origins.min()) >= -1 and int(origins.max()) < len(data)):
        return [f"'origins' names rows from {int(origins.min())} to {int(origins.max())} of {len(data)}"]
    problems = []
    for row in range(len(data)):
        x = data.x.clone()
        x[row] = 1 - x[row]
        after, _ = sent(Examples(x, data.y))
        changed = (after != before).flatten(1).any(1) if len(before) else torch.zeros(0, dtype=torch.bool)
        named = (origins == row).any(1)
        if not torch.equal(changed, named):
            problems.append(f"row {row} changes rows {_numbers(changed)}, but is said to be behind {_numbers(named)}")
    return problems


def _numbers(which: Tensor) -> list[int]:
    return [int(number) for number in which.nonzero().flatten()]
