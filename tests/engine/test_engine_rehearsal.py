"""What clients receive is known beforehand, from method, network and task, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.conformance_cases import COHORT, EARLY, job_for, numbers_apart
from fewfed import tree
from fewfed.conformance import reference
from fewfed.data.examples import Examples
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Outcome
from fewfed.engine.packet import SERVER, BadPacket, Packet
from fewfed.engine.rehearsal import Broadcasts, rehearse
from fewfed.method import Combined, Context, Method, Part, Report
from fewfed.methods.registry import choose, registered
from fewfed.network import Network
from fewfed.phase import Clock, Combine, Phase, Role, Upload, shared_rows
from fewfed.tasks.segmentation import Segmentation
from fewfed.tree import Tree
from support import digits, digits_federation, job_of, run


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


def skewed(rows: int, clients: int = 4) -> Federation:
    """Clients whose rows are of ten classes, one of them more often than the others."""
    train, test = digits()

    def make(client: int) -> Examples:
        common = (train.y == client).nonzero().flatten()[: rows // 2]
        others = (train.y != client).nonzero().flatten().roll(-300 * client)[: rows - len(common)]
        return train.rows(torch.cat([common, others]))

    return GeneratedFederation(clients, make, test.rows(torch.arange(20)), classes=10)


def received(spec: str, values: Mapping[str, Any], rows: int) -> list[str]:
    """Paths of all rows that clients receive in three rounds, in which they refuse nothing."""
    job = reference.job_for(spec, values, skewed(rows))
    sites = Sites(job, rehearse(job, 3))
    assert run(job, rounds=3, cohort=3, executor=sites).views
    arrived = {path: leaf for packet in sites.received for path, leaf in tree.leaves(packet.arrays)}
    return [path for path, leaf in arrived.items() if "/model/" not in path and leaf.dim() and len(leaf)]


@pytest.mark.parametrize("name", registered())
def test_nothing_that_a_method_broadcasts_to_usual_clients_is_refused(name: str) -> None:
    short = {key: value for key, value in EARLY.get(name, {}).items() if key != "k"}
    received(name, short, 40)


COMPOSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "five of a class, of which ten in turn have four": ("grouped(flea)", {"k": 5}, 40, "shared/features"),
    "as many as no client has": ("grouped(flea)", {"k": 50}, 40, ""),
    "more of a class than are rehearsed": ("grouped(flea)", {"k": 50}, 200, "shared/features"),
    "of any class": ("fedmix", {"group": 70}, 200, "shared/mean_x"),
    "potluck": ("potluck", {}, 40, "personal/ration/features"),
    "its parts": ("rationed(quantised(blurred(grouped(flea))))", {}, 40, "personal/ration/features"),
    "few of many": ("rationed(flea)", {"inner.share": 0.05, "part": 0.1}, 200, "personal/ration/features"),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_rows_that_blank_clients_do_not_send_are_expected_too(name: str) -> None:
    spec, values, rows, expected = COMPOSED[name]
    paths = received(spec, values, rows)
    assert any(path.startswith(expected) for path in paths) if expected else not paths


def test_masks_have_no_classes_of_rows_and_are_expected_too() -> None:
    rows = GeneratedFederation(2, lambda client: Examples(torch.rand(70, 1, 8, 8), masks(70)), empty_masks(), 0)
    layers = {"first": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), "head": nn.Conv2d(4, 2, 1)}
    fedmix = choose("fedmix", {"group": 70}).method
    job = job_of(fedmix, rows, net=Network("small", layers), task=Segmentation(2), training={"epochs": 1})
    sites = Sites(job, rehearse(job, 2))
    assert run(job, rounds=2, cohort=2, executor=sites).views
    assert any(len(packet.arrays["shared"].get("mean_y", ())) for packet in sites.received)


def masks(rows: int) -> Tensor:
    return torch.ones(rows, 8, 8, dtype=torch.long)


def empty_masks() -> Examples:
    return Examples(torch.zeros(2, 1, 8, 8), masks(2))


@dataclass(frozen=True)
class Counting(Method):
    """Its server knows when a client has sent another number of rows than it says."""

    name = "counting"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {**shared_rows(0.1, rows=Role.INPUTS), "count": Upload(Combine.SUM, Role.COUNTS)}
        return (Phase("share", Count(self), uploads=uploads), Phase("train", self, clock.epochs))


class Count(Part[Counting]):
    def begin(self, ctx: Context) -> Tree:
        return {"params": {}, "buffers": {}}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"rows": ctx.data.x[:2], "count": torch.tensor(2)}, {}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        if len(combined.values["rows"]) != int(combined.values["count"]):
            raise ValueError("that is another number")
        return server


def test_where_rows_of_zeros_cannot_be_there_blank_clients_say_it_all() -> None:
    forms = rehearse(job_of(Counting()), 2).forms
    assert {name: len(each) for name, each in forms.items()} == {"share": 1, "train": 1}


def test_phases_that_begin_late_are_rehearsed_too() -> None:
    job = job_of("fedgen", training={"epochs": 1})
    late = dataclasses.replace(job, method=dataclasses.replace(job.method, start=7, steps=2))  # type: ignore[call-arg]
    without, with_generator = rehearse(late, 9).forms["train"]
    assert not any(path.startswith("shared/generator") for path in without)
    assert any(path.startswith("shared/generator") for path in with_generator)


def last(spec: str, federation: Federation, rounds: int) -> tuple[Job, Packet]:
    """A job, and what its server sends in the last round."""
    job = job_of(spec, federation)
    sites = Sites(job, rehearse(job, rounds))
    run(job, rounds=rounds, cohort=2, executor=sites)
    return job, [packet for packet in sites.received if packet.phase == "train"][-1]


def flea() -> tuple[Job, Packet]:
    """Of FLea, in the second round."""
    whole = digits_federation(4, 12)
    return last("flea", GeneratedFederation(4, whole.examples, whole.test, whole.classes, most_rows=12), 2)


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


def _in_ration(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Packet], Packet]:
    def spoil(arrays: Tree) -> None:
        ration = arrays["personal"]["ration"]
        ration[name] = tree.map(change, {name: ration[name]})[name]

    return _changed(spoil)


SPOILED_RATIONS: dict[str, tuple[Callable[[Packet], Packet], str]] = {
    "an entry too many": (_changed(lambda a: a["personal"]["ration"].update(more=torch.zeros(4))), "is unknown"),
    "rows for all": (_changed(lambda a: a["shared"].update(features=torch.zeros(4, 64))), "'shared/features' is"),
    "another entry": (_changed(lambda a: a["personal"].update(other=torch.zeros(1))), "'personal/other' is unknown"),
    "an entry missing": (_changed(lambda a: a["personal"]["ration"].pop("labels")), "is missing"),
    "nothing but its name": (_changed(lambda a: a["personal"]["ration"].update(features={})), "is missing"),
    "another type": (_in_ration("labels", Tensor.double), "torch.int64"),
    "longer rows": (_in_ration("features", lambda leaf: leaf.repeat(1, 2) if leaf.dim() == 2 else leaf), "(rows"),
    "rows of rows": (_in_ration("labels", lambda leaf: leaf.unsqueeze(1)), "(rows)"),
    "a larger model": (
        _changed(lambda a: a["shared"]["model"]["params"].update(more=torch.zeros(9))),
        "'shared/model/params/more' is unknown",
    ),
    "NaN": (
        _in_ration("features", lambda leaf: leaf * torch.nan if leaf.is_floating_point() else leaf),
        "NaN or infinity",
    ),
}


@pytest.fixture(scope="module")
def potluck() -> tuple[Broadcasts, Packet]:
    job, packet = last("potluck", skewed(40), 3)
    return rehearse(job, 3), packet


@pytest.mark.parametrize("name", SPOILED_RATIONS)
def test_nothing_else_is_let_in_beside_what_no_blank_client_sends(
    name: str, potluck: tuple[Broadcasts, Packet]
) -> None:
    expected, packet = potluck
    expected.check(packet, 2, "train")
    spoil, reason = SPOILED_RATIONS[name]
    with pytest.raises(BadPacket) as refused:
        expected.check(spoil(packet), 2, "train")
    assert reason in str(refused.value)
