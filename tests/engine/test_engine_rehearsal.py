"""What clients receive is known beforehand, from method, network and task, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

from conformance.conformance_cases import COHORT, job_for, numbers_apart
from fewfed import tree
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Outcome
from fewfed.engine.packet import SERVER, BadPacket, Packet
from fewfed.engine.rehearsal import Broadcasts, rehearse
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import digits_federation, job_of, run


class Sites(Sequential):
    """Clients that look at everything they receive, as real sites do."""

    def __init__(self, job: Job, expected: Broadcasts) -> None:
        super().__init__(job)
        self._expected = expected
        self.received: list[Packet] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        for member in members:
            if not is_inside(briefing.phase):
                arrays = {"shared": briefing.shared, "personal": member.personal}
                packet = Packet(briefing.clock.round, briefing.phase.name, SERVER, 0.0, arrays)
                self._expected.check(packet, briefing.clock.round, briefing.phase.name)
                self.received.append(packet)
            yield from super().run(briefing, [member])


@pytest.mark.parametrize("spec", numbers_apart())
def test_what_every_method_broadcasts_is_what_was_expected(spec: str) -> None:
    job = job_for(spec)
    sites = Sites(job, rehearse(job, 2))
    assert run(job, rounds=2, cohort=COHORT, executor=sites).views
    assert sites.received or all(is_inside(phase) for phase in job.method.phases(Clock(0, 2, 1)))


def test_phases_that_begin_late_are_rehearsed_too() -> None:
    job = job_of("fedgen", training={"epochs": 1})
    late = dataclasses.replace(job, method=dataclasses.replace(job.method, start=7, steps=2))  # type: ignore[call-arg]
    without, with_generator = rehearse(late, 9).forms["train"]
    assert not any(path.startswith("shared/generator") for path in without)
    assert any(path.startswith("shared/generator") for path in with_generator)


def flea() -> tuple[Job, Packet]:
    """A job, and what its server sends in the second round."""
    whole = digits_federation(4, 12)
    federation = GeneratedFederation(4, whole.examples, whole.test, whole.classes, most_rows=12)
    job = job_of("flea", federation)
    sites = Sites(job, rehearse(job, 2))
    run(job, rounds=2, cohort=2, executor=sites)
    return job, [packet for packet in sites.received if packet.phase == "train"][-1]


def _changed(change: Callable[[Tree], None]) -> Callable[[Packet], Packet]:
    def spoil(packet: Packet) -> Packet:
        arrays = tree.clone(packet.arrays)
        change(arrays)
        return dataclasses.replace(packet, arrays=arrays)

    return spoil


SPOILED: dict[str, tuple[Callable[[Packet], Packet], str]] = {
    "another sender": (lambda packet: dataclasses.replace(packet, sender=2), "it is of sender 2"),
    "an old round": (lambda packet: dataclasses.replace(packet, round=0), "round 1"),
    "another phase": (lambda packet: dataclasses.replace(packet, phase="share"), "phase 'share'"),
    "an entry too many": (_changed(lambda a: a["shared"].update(more=torch.zeros(1))), "'shared/more' is unknown"),
    "an entry missing": (_changed(lambda a: a["shared"].pop("labels")), "missing"),
    "another type": (_changed(lambda a: a["shared"].update(labels=a["shared"]["labels"].float())), "torch.int64"),
    "other features": (_changed(lambda a: a["shared"].update(features=a["shared"]["features"][:, 1:])), "(rows, "),
    "too many rows": (
        _changed(lambda a: a["shared"].update(labels=a["shared"]["labels"].repeat(99))),
        "expected torch.int64 (rows)",
    ),
    "NaN": (_changed(lambda a: a["shared"]["features"].fill_(torch.nan)), "NaN or infinity"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_was_not_expected_is_refused(name: str) -> None:
    job, packet = flea()
    expected = rehearse(job, 2)
    expected.check(packet, 1, "train")
    spoil, reason = SPOILED[name]
    with pytest.raises(BadPacket) as refused:
        expected.check(spoil(packet), 1, "train")
    assert reason in str(refused.value)
