"""What attackers hand over, by hand; and that they are attackers in every executor, and only they."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fewfed import tree
from fewfed.adversaries.attack import Attack, Attackers
from fewfed.adversaries.boost import Boost
from fewfed.adversaries.known import ATTACKS
from fewfed.adversaries.label_flip import LabelFlip
from fewfed.adversaries.noise import Noise
from fewfed.adversaries.shared_rows import RowFeatures, RowLabels
from fewfed.adversaries.sign_flip import SignFlip
from fewfed.data.examples import Examples
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.engine.packet import Packet
from fewfed.method import Report
from fewfed.methods.registry import registered
from fewfed.phase import Clock, Combine, Phase, Role, Upload, shared_rows
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import prepare
from fewfed.tree import Tree
from support import EXACT, context, digits, digits_federation, digits_network, gap, job_of, run, same

BAD = frozenset({1, 4})


def handed_over(attack: Attack, upload: Tree, shared: Tree, uploads: dict[str, Upload], **given: Any) -> Tree:
    from fewfed.method import Method

    phase = Phase("train", Method(), 1, uploads)
    ctx = context(digits_network(), digits()[0].rows(torch.arange(8)), shared, phase=phase, **given)
    return attack.altered(Report(upload, {"kept": torch.ones(1)}, 8.0), ctx).upload


MODEL = {"model": Upload(Combine.MEAN, Role.MODEL)}


def some_model(*values: float) -> Tree:
    return {"params": {"w": torch.tensor(values)}, "buffers": {"var": torch.tensor([7.0]), "seen": torch.tensor(3)}}


@pytest.mark.parametrize(
    ("attack", "expected"), [(SignFlip(), [0.0, 3.0]), (SignFlip(2.0), [-1.0, 4.0]), (Boost(3.0), [4.0, -1.0])]
)
def test_a_model_is_changed_by_its_difference_from_the_broadcast(attack: Attack, expected: list[float]) -> None:
    sent = handed_over(attack, {"model": some_model(2.0, 1.0)}, {"model": some_model(1.0, 2.0)}, MODEL)
    assert sent["model"]["params"]["w"].tolist() == expected
    assert sent["model"]["buffers"]["var"].tolist() == [7.0]
    assert int(sent["model"]["buffers"]["seen"]) == 3


def test_a_change_is_changed_as_it_is() -> None:
    uploads = {"step": Upload(Combine.SUM, Role.UPDATE), "score": Upload(Combine.KEEP, Role.SCORE)}
    upload = {"step": {"w": torch.tensor([1.0, -2.0])}, "score": torch.tensor(0.5)}
    sent = handed_over(SignFlip(), upload, {"step": {"w": torch.tensor([9.0, 9.0])}}, uploads)
    assert sent["step"]["w"].tolist() == [-1.0, 2.0]
    assert float(sent["score"]) == 0.5


def test_noise_is_as_long_as_asked_for_and_the_same_each_time() -> None:
    model = {"params": {"w": torch.zeros(50_000), "v": torch.zeros(50_000)}, "buffers": {}}
    moved = tree.map(lambda leaf: leaf + 0.01, model)
    one, again, later = (
        handed_over(Noise(2.0), {"model": moved}, {"model": model}, MODEL, client=client, round=round)
        for client, round in ((1, 0), (1, 0), (1, 1))
    )
    assert same(one, again)
    assert not same(one, later)
    length = torch.cat([leaf for _, leaf in tree.leaves(one)]).norm()
    assert abs(float(length) / (2 * 0.01 * 100_000**0.5) - 1) < 0.02
    assert not torch.equal(one["model"]["params"]["w"], one["model"]["params"]["v"])


def test_labels_are_flipped_where_rows_are_read() -> None:
    data = Examples(torch.zeros(3, 2), torch.tensor([0, 8, 9]))
    flipped = LabelFlip().rows(data, 10)
    assert flipped.y.tolist() == [1, 9, 0]
    assert flipped.x is data.x


def test_shared_rows_are_poisoned_by_their_roles() -> None:
    uploads = {**shared_rows(1.0, f=Role.FEATURES, y=Role.LABELS, s=Role.LABELS), **MODEL}
    upload = {
        "f": {"codes": torch.tensor([[3], [4]]), "step": torch.tensor([0.5, 1.0])},
        "y": torch.tensor([0, 9]),
        "s": torch.tensor([[0.5, 0.2, 0.3], [1.0, 0.0, 0.0]]),
        "model": some_model(1.0),
    }
    labels = handed_over(RowLabels(), upload, {}, uploads)
    assert labels["y"].tolist() == [1, 0]
    assert labels["s"][1].tolist() == [0.0, 1.0, 0.0]
    assert same({**labels, "y": upload["y"], "s": upload["s"]}, upload)
    features = handed_over(RowFeatures(4.0), upload, {}, uploads)
    assert features["f"]["step"].tolist() == [2.0, 4.0]
    assert same({**features, "f": upload["f"]}, {**upload, "f": upload["f"]})
    assert features["f"]["codes"].tolist() == [[3], [4]]


def attacked(method: str, attack: Attack, **training: Any) -> Job:
    job = job_of(method, digits_federation(6, 16), training=training)
    return dataclasses.replace(job, adversary=Attackers(BAD, attack))


class Watching:
    """Keeps every packet."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, str, int], Packet] = {}
        self._round = 0

    def begins(self, phase: Phase, clock: Clock, shared: Tree, members: Any) -> frozenset[int]:
        self._round = clock.round
        return frozenset(members)

    def receives(self, client: int, personal: Tree) -> None: ...

    def sends(self, packet: Packet) -> None:
        kept = dataclasses.replace(packet, arrays=tree.clone(packet.arrays))
        self.sent[self._round, packet.phase, packet.sender] = kept

    def ends(self) -> None: ...


def first_packets(job: Job) -> dict[tuple[int, str, int], Packet]:
    from fewfed.engine.loop import run_rounds

    watching = Watching()
    run_rounds(job, Sequential(job), [], rounds=1, cohort=6, witness=watching)
    return watching.sent


@pytest.mark.parametrize("attack", [SignFlip(), Boost(), Noise(), LabelFlip()], ids=lambda attack: attack.name)
def test_only_attackers_hand_over_something_else(attack: Attack) -> None:
    plain, bad = first_packets(job_of("fedavg", digits_federation(6, 16))), first_packets(attacked("fedavg", attack))
    assert plain.keys() == bad.keys()
    for key, packet in plain.items():
        assert same(packet.arrays, bad[key].arrays) == (key[2] not in BAD)
        assert packet.weight == bad[key].weight


@pytest.mark.parametrize("attack", [RowLabels(), RowFeatures(), LabelFlip()], ids=lambda attack: attack.name)
@pytest.mark.parametrize("method", ["flea", "quantised(flea)", "feddata", "fedmix"])
def test_shared_rows_of_attackers_pass_the_schema(method: str, attack: Attack) -> None:
    done = run(dataclasses.replace(attacked(method, attack), rows_public=True), rounds=2, cohort=6)
    assert [metrics["failed"] for metrics in done.metrics] == [[], []]
    honest = run(dataclasses.replace(job_of(method, digits_federation(6, 16)), rows_public=True), rounds=2, cohort=6)
    assert not same(done.server, honest.server)


@pytest.mark.parametrize("attack", [*ATTACKS.values()], ids=lambda cls: cls.name)
@pytest.mark.parametrize("method", ["flea", "scaffold"])
def test_attackers_are_the_same_in_worker_processes(method: str, attack: type[Attack]) -> None:
    job = attacked(method, attack())
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        one, other = (run(job, rounds=2, cohort=5, executor=executor) for executor in (Sequential(job), workers))
    finally:
        workers.close()
    assert same(one.server, other.server)


@pytest.mark.parametrize("mode", ["stacked", "eager"])
@pytest.mark.parametrize("attack", [LabelFlip(), SignFlip(), Noise(), RowFeatures()], ids=lambda attack: attack.name)
def test_attackers_are_the_same_where_steps_are_recorded(mode: Any, attack: Attack) -> None:
    from fewfed.conformance.double import in_double

    job = in_double(attacked("flea", attack, optimizer="sgd"))  # Adam magnifies how numbers round.
    device = Device(job, options=DeviceOptions(device="cpu", mode=mode))
    try:
        one, other = (run(job, rounds=2, cohort=6, executor=executor) for executor in (Sequential(job), device))
    finally:
        device.close()
    assert gap(one.server, other.server) < EXACT


@pytest.mark.parametrize("mode", ["stacked", "graphs", "eager"])
def test_flipped_labels_are_seen_beside_clients_of_one_table(mode: Any) -> None:
    """Where clients are cut out of one data set, a device has all rows in one table."""
    values = {"data": "digits", "clients": 6, "cohort": 6, "optimizer": "sgd", "attack": "label-flip"}
    job = prepare(resolve("fedavg", {**values, "attackers": "1,4", "rounds": 2, "epochs": 1})).job
    device = Device(job, options=DeviceOptions(device="cpu", mode=mode))
    try:
        one, other = (run(job, rounds=2, cohort=6, executor=executor) for executor in (Sequential(job), device))
    finally:
        device.close()
    assert gap(one.server, other.server) < 1e-5
    honest = run(dataclasses.replace(job, adversary=None), rounds=2, cohort=6)
    assert gap(one.server, honest.server) > 1e-3


@pytest.mark.parametrize("name", sorted(registered()))
def test_an_attack_has_a_target_wherever_something_is_sent(name: str) -> None:
    phases = job_of(name, digits_federation(6, 16)).method.phases(Clock(1, 9, 2))
    sent = [
        (phase, upload)
        for phase in phases
        for upload in phase.uploads.values()
        if phase.cohort.value in ("round", "all")
    ]
    shares = any(upload.rows and upload.role in (Role.FEATURES, Role.INPUTS) for _, upload in sent)
    assert any(LabelFlip().hits(phase) for phase in phases) == bool(sent)
    assert any(RowFeatures().hits(phase) for phase in phases) == shares
    assert any(SignFlip().hits(phase) for phase in phases) == any(
        upload.role in (Role.MODEL, Role.UPDATE, Role.CONTROL, Role.GENERATOR) for _, upload in sent
    )


def test_every_attack_says_what_it_is() -> None:
    assert [*ATTACKS] == ["label-flip", "sign-flip", "boost", "noise", "row-labels", "row-features"]
    for name, cls in ATTACKS.items():
        assert name == cls.name
        assert cls.what
        assert cls.target
        assert ("scale" in cls().told) == cls.has_scale


def test_attackers_own_models_are_not_scored() -> None:
    from fewfed.engine.evaluation import Evaluate, evaluated_clients

    job = attacked("fedbn", LabelFlip())
    assert list(evaluated_clients(job, 0)) == [0, 2, 3, 5]
    assert set(evaluated_clients(job, 3)) <= {0, 2, 3, 5}
    assert list(evaluated_clients(dataclasses.replace(job, adversary=None), 0)) == [0, 1, 2, 3, 4, 5]
    done = run(job, rounds=1, cohort=6, observers=[Evaluate()])
    assert done.metrics[0]["evaluated_clients"] == 4
