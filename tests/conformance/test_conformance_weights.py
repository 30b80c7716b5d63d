"""Clients weigh what the training says, in every phase of every method, unless the phase declares otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import pytest
from conformance_cases import SIZES, every_method, job_for, play

from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Done, Outcome
from fewfed.phase import Phase
from fewfed.training import Weighting

pytestmark = pytest.mark.timeout(120)


class Scales(Sequential):
    """Notes the weight of every packet that leaves a client."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.found: list[tuple[Phase, dict[int, float]]] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        weights: dict[int, float] = {}
        for outcome in super().run(briefing, members):
            assert isinstance(outcome, Done)
            weights[outcome.packet.sender] = outcome.packet.weight
            yield outcome
        if not is_inside(briefing.phase):
            self.found.append((briefing.phase, weights))


def weighed(spec: str, weighting: Weighting) -> list[tuple[Phase, dict[int, float]]]:
    job = job_for(spec)
    job = dataclasses.replace(job, training=dataclasses.replace(job.training, weighting=weighting))
    scales = Scales(job)
    play(job, scales, rounds=2, evaluate_every=2)
    return scales.found


@pytest.mark.thorough  # What executors do with weights is in test_engine_weighting.py.
@pytest.mark.parametrize("spec", every_method())
def test_clients_weigh_what_the_training_says(spec: str) -> None:
    """By samples a client weighs its rows, where a phase declares two shares of rows also those of one other client
    (a model that visited both), and where it declares none the same as everybody; uniformly all weigh the same."""
    for phase, weights in weighed(spec, "samples"):
        rows = {client: float(SIZES[client]) for client in weights}
        if phase.weight.per_row == 0:
            assert set(weights.values()) == {1.0}, phase.name
        elif phase.weight.per_row == 2:
            assert sorted(weight - rows[client] for client, weight in weights.items()) == sorted(rows.values())
        else:
            assert weights == rows, phase.name
    for phase, weights in weighed(spec, "uniform"):
        assert set(weights.values()) == {phase.weight.per_row + phase.weight.beside}, phase.name
