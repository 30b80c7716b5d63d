"""What a site's policy forbids never leaves it: shown on the packets and on what is broadcast, for every executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfed
from fewfed import Training, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.data.readers.options import DataOptions
from fewfed.engine.events import Withdrawn
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView
from fewfed.engine.outcomes import Done, Failed, Outcome
from fewfed.engine.packet import Packet, without_arrays
from fewfed.engine.provenance import Provenance
from fewfed.engine.turn import Member
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.feddata import FedData
from fewfed.methods.fedproto import FedProto
from fewfed.methods.flea import FLea
from fewfed.methods.parts.codes import decode
from fewfed.methods.registry import choose
from fewfed.phase import MODEL, Clock, Combine, Role, Upload
from fewfed.privacy.policy import Policies, Policy, PolicyGate, gate_of, read, refuse_nobody
from fewfed.privacy.shared_rows import of_client
from fewfed.runs.budget import shapes_of_stages
from fewfed.runs.folder import RunFolder
from fewfed.tasks.regression import Regression
from run_support import records, small
from support import Recorder, digits, digits_federation, job_of, run, same

NAMES = tuple("0123456789")
ROWS = 20
CLIENTS = 5


def digits_apart() -> GeneratedFederation:
    """Clients of whose rows none is another's too."""
    train, test = digits()

    def rows(client: int) -> Examples:
        mine = torch.isin(train.y, torch.tensor([client, client + 5, (client + 1) % 5])).nonzero().flatten()
        return train.rows(mine[client * 40 : client * 40 + ROWS])

    return GeneratedFederation(CLIENTS, rows, test, classes=10)


def guarded(method: Any, common: Policy | None = None, **sites: Policy) -> Job:
    job = job_of(method, digits_apart(), training={"epochs": 1})
    shapes = {"conv1": (8, 4, 4)}
    own = {name.removeprefix("c"): each for name, each in sites.items()}
    gate = gate_of(Policies(common or Policy(), own), job, NAMES, shapes)
    return dataclasses.replace(job, gates=(gate,), rows_public=True)


class Spied:
    """An executor whose packets and broadcasts are kept."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.packets: list[tuple[int, str, int, dict[str, Any]]] = []
        self.broadcasts: list[tuple[int, str, dict[str, Any]]] = []
        self.personal: list[tuple[int, dict[str, Any]]] = []
        """Of every round what single clients received."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        self.broadcasts.append((briefing.clock.round, briefing.phase.name, tree.clone(briefing.shared)))
        members = list(members)
        self.personal += [(briefing.clock.round, tree.clone(member.personal)) for member in members]
        for outcome in self._inner.run(briefing, members):
            if isinstance(outcome, Done):
                packet = outcome.packet
                self.packets.append((packet.round, packet.phase, packet.sender, tree.clone(packet.arrays)))
            yield outcome

    def sent(self, phase: str) -> list[tuple[int, int, dict[str, Any]]]:
        return [(round, client, arrays) for round, name, client, arrays in self.packets if name == phase]


EXECUTORS = {
    "sequential": Sequential,
    "workers": lambda job: Workers(job, options=WorkerOptions(processes=2, stack=1, layout="plain")),
    "workers, stacked": lambda job: Workers(job, options=WorkerOptions(processes=2, stack=3)),
    "device, graphs": lambda job: Device(job, options=Options(device="cpu", mode="graphs")),
    "device, stacked": lambda job: Device(job, options=Options(device="cpu", mode="stacked")),
}
SLOW = ("workers, stacked", "device, graphs")
one_by_one = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in EXECUTORS]
)


def played(job: Job, name: str = "sequential", rounds: int = 3, cohort: int = CLIENTS) -> tuple[Spied, Recorder]:
    with closing(EXECUTORS[name](job)) as executor:
        spied = Spied(executor)
        return spied, run(job, rounds=rounds, cohort=cohort, executor=spied)  # type: ignore[arg-type]


def labels(job: Job, client: int) -> Tensor:
    return job.federation.examples(client).y


@one_by_one
def test_rows_of_a_class_that_may_not_leave_do_not(name: str) -> None:
    job = guarded(FLea(share=1.0), Policy(never=("3", "1")))
    spied, recorder = played(job, name)
    sent = spied.sent("share")
    assert len(sent) == 3 * CLIENTS
    for _, client, arrays in sent:
        held = labels(job, client)
        allowed = held[~torch.isin(held, torch.tensor([1, 3]))]
        assert sorted(arrays["labels"].tolist()) == sorted(allowed.tolist())
        assert len(arrays["features"]) == len(allowed)
    assert any(len(arrays["labels"]) < ROWS for _, _, arrays in sent)
    for _, _, shared in spied.broadcasts:
        assert not bool(torch.isin(shared.get("labels", torch.zeros(0)), torch.tensor([1, 3])).any())
    assert not any(metrics["failed"] for metrics in recorder.metrics)


@one_by_one
def test_a_class_with_few_rows_and_rows_that_opted_out_stay(name: str) -> None:
    job = guarded(FedData(share=1.0), Policy(min_rows_of_class=6), c2=Policy(opt_out=(0, 5, 99)))
    spied, _ = played(job, name, rounds=1)
    sent = {client: arrays for _, client, arrays in spied.sent("setup")}
    assert sent.keys() == set(range(CLIENTS))
    for client, arrays in sent.items():
        rows = job.federation.examples(client)
        counts = torch.bincount(rows.y, minlength=10)
        if client == 2:
            kept = [row for row in range(ROWS) if row not in (0, 5)]
        else:
            kept = [row for row in range(ROWS) if counts[rows.y[row]] >= 6]
        expected = {tuple(rows.x[row].flatten().tolist()) for row in kept}
        assert {tuple(row.flatten().tolist()) for row in arrays["x"]} == expected
        assert len(arrays["y"]) == len(arrays["x"]) == len(kept)


def test_rows_that_opted_out_do_not_count_for_their_class() -> None:
    """Of six rows of a class five have opted out: the last must not leave as one of six."""
    plain = guarded(FedData(share=1.0), Policy())
    held = labels(plain, 2)
    common = int(torch.bincount(held).argmax())
    out = tuple(int(row) for row in torch.nonzero(held == common).flatten()[1:])
    least = int((held == common).sum())
    assert least > 2
    for policy, may in ((Policy(opt_out=out), True), (Policy(opt_out=out, min_rows_of_class=2), False)):
        spied, _ = played(guarded(FedData(share=1.0), Policy(), c2=policy), rounds=1)
        (arrays,) = (arrays for _, client, arrays in spied.sent("setup") if client == 2)
        assert (common in arrays["y"].tolist()) is may


@one_by_one
def test_a_row_leaves_no_more_often_than_allowed_and_no_more_rows_in_all(name: str) -> None:
    job = guarded(FLea(share=0.5), Policy(most_releases_of_row=2), c0=Policy(most_releases=13))
    spied, _ = played(job, name, rounds=4)
    sent: dict[int, list[int]] = {}
    for _, client, arrays in spied.sent("share"):
        sent.setdefault(client, []).append(len(arrays["labels"]))
    assert sent == {0: [10, 3, 0, 0], **{client: [10, 10, 0, 0] for client in range(1, CLIENTS)}}


@one_by_one
def test_a_forbidden_role_leaves_the_site_out_of_the_phase_and_the_round_goes_on(name: str) -> None:
    job = guarded(FLea(share=0.5), c1=Policy(roles=("model",)), c3=Policy(roles=("features", "labels")))
    spied, recorder = played(job, name, rounds=2)
    assert {client for _, client, _ in spied.sent("share")} == {0, 2, 3, 4}
    assert name.startswith("device") or {client for _, client, _ in spied.sent("train")} == {0, 1, 2, 4}
    failed = recorder.metrics[0]["failed"]
    assert [(one["client"], one["phase"], one["cause"]) for one in failed] == [
        (3, "train", "policy"),
        (1, "share", "policy"),
    ]
    assert "is of role features, and allowed are model" in failed[1]["reason"]
    assert recorder.metrics[0]["phases"]["train"]["clients"] == 4


def test_a_row_needs_enough_rows_behind_it() -> None:
    spied, _ = played(guarded(FLea(share=0.5), c0=Policy(group=2)))
    assert {len(arrays["labels"]) for _, client, arrays in spied.sent("share") if client == 0} == {0}
    assert {len(arrays["labels"]) for _, client, arrays in spied.sent("share") if client} == {10}


def test_a_class_mean_of_few_rows_or_of_one_that_opted_out_does_not_leave() -> None:
    """The mean of a class with one row is that row: no policy that would keep it lets it go under another name."""
    alone = Examples(*_of_classes((2, 6), (7, 1)))
    federation = GeneratedFederation(3, lambda client: alone, digits()[1], classes=10)
    job = job_of(FedProto(), federation, training={"epochs": 1})
    policies = (Policy(), Policy(group=2), Policy(opt_out=(6,)))
    gate = PolicyGate(policies, (frozenset(),) * 3, {}, opted_out={2: frozenset({6})})
    spied, recorder = played(dataclasses.replace(job, gates=(gate,)), rounds=1, cohort=3)
    ((_, client, arrays),) = spied.sent("train")
    assert client == 0
    model = arrays["model"]
    the_row = job.net.apply(model, alone.x[6:], stop=job.net.penultimate, train=False).flatten()
    assert torch.allclose(arrays["means"][7].flatten(), the_row, atol=1e-5)
    reasons = {failure["client"]: failure["reason"] for failure in recorder.metrics[0]["failed"]}
    assert "of one there are fewer than 2" in reasons[1]  # The coordinator reads it: not how many.
    assert "some have opted out" in reasons[2]
    enough = PolicyGate((Policy(group=1),) * 3, (frozenset(),) * 3)
    assert len(played(dataclasses.replace(job, gates=(enough,)), rounds=1, cohort=3)[0].sent("train")) == 3


def _of_classes(*wanted: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """So many rows of each class, one class after another."""
    train, _ = digits()
    rows = torch.cat([(train.y == label).nonzero().flatten()[:count] for label, count in wanted])
    return train.x[rows], train.y[rows]


@pytest.mark.parametrize(
    ("policy", "leaves"),
    [
        (Policy(), True),
        (Policy(roles=("model", "inputs")), True),
        (Policy(never=("1",)), False),
        (Policy(opt_out=(2,)), False),
        (Policy(group=2), False),
        (Policy(most_releases=100), False),
        (Policy(stages=("conv1",)), False),
    ],
)
def test_rows_that_are_not_declared_as_rows_do_not_leave_where_some_may_not(policy: Policy, leaves: bool) -> None:
    @dataclass(frozen=True)
    class Hiding(FedAvg):
        """Sends inputs that its declaration does not count."""

        def phases(self, clock: Clock) -> Any:
            (train,) = super().phases(clock)
            return (dataclasses.replace(train, uploads={**MODEL, "some": Upload(Combine.KEEP, Role.INPUTS)}),)

        def end(self, work: Any, ctx: Any) -> Any:
            report = super().end(work, ctx)
            return report._replace(upload={**report.upload, "some": ctx.data.x[:3]})

    spied, recorder = played(guarded(Hiding(), c1=policy), rounds=1)
    assert {client for _, client, _ in spied.sent("train")} == ({0, 1, 2, 3, 4} if leaves else {0, 2, 3, 4})
    assert [failure["cause"] for failure in recorder.metrics[0]["failed"]] == ([] if leaves else ["policy"])


def test_scores_that_a_method_reports_stay_where_their_role_may_not_leave() -> None:
    class Telling(FedAvg):
        def end(self, work: Any, ctx: Any) -> Any:
            return super().end(work, ctx)._replace(metrics={"accuracy": 0.5})

    job = guarded(Telling(), c1=Policy(roles=("model",)), c2=Policy(roles=("model", "score")))
    said: dict[int, set[str]] = {}

    class Listening(Sequential):
        def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
            for outcome in super().run(briefing, members):
                if isinstance(outcome, Done):
                    said[outcome.packet.sender] = {*outcome.packet.metrics}
                yield outcome

    run(job, rounds=1, cohort=CLIENTS, executor=Listening(job))
    assert {client for client, names in said.items() if "accuracy" in names} == {0, 2, 3, 4}


@one_by_one
def test_losses_of_training_stay_where_scores_may_not_leave(name: str) -> None:
    job = guarded(FedAvg(), c1=Policy(roles=("model",)), c2=Policy(roles=("model", "score")))
    with closing(EXECUTORS[name](job)) as executor:
        packets: list[Packet] = []

        class Listening:
            def __getattr__(self, name: str) -> Any:
                return getattr(executor, name)

            def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
                for outcome in executor.run(briefing, members):
                    found = (outcome.packet,) if isinstance(outcome, Done) else getattr(outcome, "packets", ())
                    packets.extend(map(without_arrays, found))
                    yield outcome

        recorder = run(job, rounds=1, cohort=CLIENTS, executor=Listening())  # type: ignore[arg-type]
    terms = {packet.sender: packet.terms for packet in packets}
    assert terms.keys() == set(range(CLIENTS))
    assert {client for client, told in terms.items() if told} == {0, 2, 3, 4}
    # All take as many steps: what is recorded is the mean over those who say something.
    assert {packet.steps for packet in packets} == {packets[0].steps}
    mean = sum(terms[client]["task"] for client in (0, 2, 3, 4)) / 4
    assert recorder.metrics[0]["phases"]["train"]["terms"]["task"] == pytest.approx(mean)


def test_where_nobody_tells_losses_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("roles = ['model', 'features', 'labels']")
    chosen = small(policy=str(tmp_path / "policy.toml"), rounds=2)
    told = fewfed.run("flea", chosen, Training(epochs=1), out=tmp_path / "run")
    assert told.failed == 0
    assert not any("terms" in phase for record in records(tmp_path / "run") for phase in record["phases"].values())


def test_a_statement_says_what_sites_send_whose_policies_forbid_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("roles = ['model', 'features', 'labels']")
    chosen = small(policy=str(tmp_path / "policy.toml"), rounds=2)
    found = fewfed.explain("flea", chosen, Training(epochs=1))
    assert Role.SCORE not in found.never
    assert found.as_json() == fewfed.explain("flea", small(rounds=2), Training(epochs=1)).as_json()


def test_features_of_another_stage_do_not_leave() -> None:
    job = job_of(FLea(share=0.5), digits_federation(CLIENTS, ROWS), training={"epochs": 1})
    row = tuple(job.net.apply(job.net.model(), job.federation.test.x[:1], stop=job.net.position("conv1")).shape[1:])
    for shapes, leaves in (
        ({"conv1": row, "conv2": (1, 2)}, True),
        ({"conv1": (1, 2), "conv2": row}, False),
        ({"conv1": row, "conv2": row}, False),  # Nobody can tell which it is.
        ({"conv1": (1, 2)}, False),
    ):
        policies = (Policy(), *[Policy(stages=("conv1",))] * (CLIENTS - 1))
        gate = PolicyGate(policies, (frozenset(),) * CLIENTS, shapes)
        spied, _ = played(dataclasses.replace(job, gates=(gate,)), rounds=1)
        assert {client for _, client, _ in spied.sent("share")} == (set(range(CLIENTS)) if leaves else {0})


def test_features_in_fewer_bits_are_those_of_their_stage() -> None:
    method = choose("quantised(flea)", {"inner.share": 0.5}).method
    job = job_of(method, digits_federation(CLIENTS, ROWS), training={"epochs": 1})
    for stages, leaves in ((("conv1",), True), (("conv2",), False)):
        policies = (Policy(), *[Policy(stages=stages)] * (CLIENTS - 1))
        gate = PolicyGate(policies, (frozenset(),) * CLIENTS, shapes_of_stages(job))
        spied, recorder = played(dataclasses.replace(job, gates=(gate,)), rounds=1)
        assert {client for _, client, _ in spied.sent("share")} == (set(range(CLIENTS)) if leaves else {0})
        assert {failure["cause"] for failure in recorder.metrics[0]["failed"]} == (set() if leaves else {"policy"})


@pytest.mark.parametrize("method", [FedData(share=1.0), FLea(share=0.5, cut="input")])
def test_a_site_that_names_stages_sends_no_inputs(method: Any) -> None:
    job = job_of(method, digits_federation(CLIENTS, ROWS), training={"epochs": 1}, rows_public=True)
    policies = (Policy(), *[Policy(stages=("conv1",))] * (CLIENTS - 1))
    gate = PolicyGate(policies, (frozenset(),) * CLIENTS, shapes_of_stages(job))
    spied, _ = played(dataclasses.replace(job, gates=(gate,)), rounds=1)
    (phase,) = {each.name for each in job.method.phases(Clock(0, 1, 1)) if each.row_uploads}
    assert {client for _, client, _ in spied.sent(phase)} == {0}


@pytest.mark.parametrize(
    ("spec", "policy", "reason"),
    [
        ("flea", 'stages = ["conv2"]', "features behind conv1, but allowed are those behind conv2"),
        ("quantised(flea)", "stages = []", "features behind conv1, but allowed are those behind no stage"),
        ("ccvr", 'stages = ["conv1"]', "features behind fc1, but allowed are those behind conv1"),
        ("fedmix", 'stages = ["conv1"]', "are inputs, before any stage, and allowed are features behind conv1"),
    ],
)
def test_stages_that_no_site_allows_are_refused_before_the_run(
    tmp_path: Path, spec: str, policy: str, reason: str
) -> None:
    (tmp_path / "policy.toml").write_text(policy)
    chosen = small(network="digits-cnn", policy=str(tmp_path / "policy.toml"))
    with pytest.raises(ConfigError, match=rf"no site may take part in phase '\w+': .*{reason}"):
        fewfed.run(spec, chosen, Training(epochs=1), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_prototypes_and_counts_tell_of_classes_too() -> None:
    job = guarded(FedProto(), Policy(never=("1",)))
    spied, recorder = played(job, rounds=1)
    told = {client for _, client, _ in spied.sent(next(iter(recorder.metrics[0]["phases"])))}
    assert told == {client for client in range(CLIENTS) if 1 not in labels(job, client)}
    assert told
    assert told != set(range(CLIENTS))


@pytest.mark.parametrize("method", [FedData(share=1.0), FLea(share=1.0, cut="input", history=3), FLea(share=1.0)])
def test_a_revoked_sites_rows_are_in_no_exchange_from_then_on(method: Any) -> None:
    """Whatever the server keeps of them: pools that are sent once, and buffers of several rounds."""
    kept, _ = played(guarded(method), rounds=5)
    job = guarded(method, c1=Policy(revoked_from=4), c4=Policy(revoked_from=3))
    spied, recorder = played(job, rounds=5)
    mine: dict[int, set[tuple[float, ...]]] = {1: set(), 4: set()}
    for _, _, client, arrays in spied.packets:
        if client in mine:
            for name in ("features", "x"):
                mine[client] |= {tuple(row.flatten().tolist()) for row in arrays.get(name, torch.zeros(0, 1))}
    assert all(mine.values())
    seen = {1: set[int](), 4: set[int]()}
    for round, _, shared in spied.broadcasts:
        for name in ("features", "x"):
            rows = {tuple(row.flatten().tolist()) for row in shared.get(name, torch.zeros(0, 1))}
            for client, own in mine.items():
                seen[client] |= {round} if rows & own else set()
    assert max(seen[1]) == 2
    assert max(seen[4]) == 1
    assert not [packet for packet in spied.packets if packet[2] == 4 and packet[0] >= 2]
    told = [event for view in recorder.views for event in view.record.events if isinstance(event, Withdrawn)]
    assert told
    assert sum(event.rows for event in told) > 0
    # Until then everything was as without.
    for (round, phase, ours), (_, _, theirs) in zip(kept.broadcasts, spied.broadcasts, strict=True):
        if round < 2:
            assert same(ours, theirs), phase
        else:
            assert not same(ours, theirs), phase


CODED = [
    ("quantised(flea)", {"inner.share": 1.0, "inner.history": 3}),
    ("quantised(flea)", {"bits": 2, "keep": 0.5, "inner.share": 1.0, "inner.history": 3}),
    ("quantised(flea)", {"bits": 0, "keep": 0.5, "inner.share": 1.0}),
    ("quantised(feddata)", {"inner.share": 1.0}),
    ("rationed(flea)", {"inner.share": 1.0, "inner.history": 3, "part": 1.0}),
    ("rationed(flea)", {"inner.share": 1.0, "inner.history": 3, "part": 2.0, "bits": 0}),
    ("rationed(feddata)", {"inner.share": 1.0, "part": 2.0}),
    ("rationed(quantised(flea))", {"inner.inner.share": 1.0}),
    ("potluck", {"share": 1.0, "k": 2, "history": 3}),
]


@pytest.mark.parametrize(("spec", "values"), CODED)
def test_a_revoked_sites_rows_are_in_no_exchange_where_rows_come_as_codes_or_are_counted(
    spec: str, values: dict[str, Any]
) -> None:
    """What is served is held against what everybody's packets say: after the revocation each row is another's."""
    job = guarded(choose(spec, values).method, c1=Policy(revoked_from=4), c4=Policy(revoked_from=3))
    spied, recorder = played(job, rounds=5)
    assert {view.record.round for view in recorder.views} == set(range(1, 6))
    phases = {phase.name: phase for phase in job.method.phases(Clock(0, 5, 1))}
    sent: dict[int, list[Tensor]] = {client: [] for client in range(CLIENTS)}
    for _, name, client, arrays in spied.packets:
        if (phase := phases[name]).row_upload:
            rows = phase.does.decoded(arrays)[phase.row_upload]
            assert len(rows) == len(arrays[phase.label_upload])
            sent[client].append(rows.flatten(1))
    everybody = torch.cat([torch.cat(sent[client]) for client in range(CLIENTS)])
    owner = torch.cat([torch.full((sum(map(len, sent[client])),), client) for client in range(CLIENTS)])
    kept = recorder.views[-1].provenance
    assert kept is not None
    assert not kept.as_json()["mixed"]
    seen: dict[int, set[int]] = {round: set() for round in range(5)}
    for round, received in [(each[0], each[2]) for each in spied.broadcasts] + spied.personal:
        for rows in _rows_in(received, bits=values.get("bits", 4 if spec == "potluck" else 8)):
            nearest = torch.cdist(rows.double(), everybody.double()).argmin(1)
            seen[round] |= set(owner[nearest].tolist())
    assert {1, 4} <= seen[1] | seen[0]
    assert 4 not in seen[2] | seen[3] | seen[4]
    assert 1 not in seen[3] | seen[4]
    assert {0, 2, 3} <= seen[4]
    events = [(view.record.round, each) for view in recorder.views for each in view.record.events]
    told = [(round, event) for round, event in events if isinstance(event, Withdrawn)]
    assert [round for round, _ in told] == [3, 4]
    assert all(event.rows for _, event in told)


def _rows_in(received: dict[str, Any], bits: int) -> list[Tensor]:
    """Rows that were served, to all or to one, as numbers."""
    found = [received.get(name) for name in ("features", "x")]
    ration = received.get("ration", {})
    for name in ("features", "x"):
        given = ration.get(name)
        found.append(given if given is None or isinstance(given, Tensor) else decode(given, bits))
    return [rows.flatten(1) for rows in found if rows is not None and len(rows)]


def test_where_all_rows_that_came_last_were_withdrawn_the_run_goes_on() -> None:
    method = choose("potluck", {"share": 1.0, "k": 2, "history": 3}).method
    revoked = {f"c{client}": Policy(revoked_from=3) for client in range(1, CLIENTS)}
    _, recorder = played(guarded(method, c0=Policy(most_releases=0), **revoked), rounds=4)
    assert len(recorder.metrics) == 4


def test_rows_that_are_kept_as_codes_alone_are_nobodys() -> None:
    """An array that has no room for a client's number, without others beside it, cannot be followed: that is said."""
    from fewfed.methods.flea import Share

    class Whole(Share):
        def absorb(self, server: Any, combined: Any) -> Any:
            return {**server, "codes": combined.values["features"].to(torch.uint8)}

    class Coding(FLea):
        def broadcast(self, server: Any) -> Any:
            return {"model": server["model"]}

        def phases(self, clock: Clock) -> Any:
            train, share = super().phases(clock)
            return (train, dataclasses.replace(share, does=Whole(self)))

    with pytest.raises(RunError, match=r"rows of clients 0 were withdrawn, but cannot be told"):
        played(guarded(Coding(share=0.5), c0=Policy(revoked_from=2)))


def test_rows_that_were_mixed_cannot_be_taken_out_and_that_is_said() -> None:
    class Mixing(FLea):
        def broadcast(self, server: Any) -> Any:
            return {"model": server["model"]}

        def phases(self, clock: Clock) -> Any:
            train, share = super().phases(clock)
            return (train, dataclasses.replace(share, does=Mean(self)))

    from fewfed.methods.flea import Share

    class Mean(Share):
        def absorb(self, server: Any, combined: Any) -> Any:
            return {**server, "centre": combined.values["features"].mean(0)}

    job = guarded(Mixing(share=0.5), c0=Policy(revoked_from=2))
    with pytest.raises(RunError, match=r"rows of clients 0 were withdrawn.*'centre' on the server is computed from"):
        played(job)


def test_whose_rows_are_where_survives_being_written() -> None:
    job = guarded(FLea(share=0.5, history=3))
    found: list[Provenance] = []

    class Keep:
        def after_round(self, view: RoundView) -> None:
            assert view.provenance is not None
            found.append(Provenance.from_json(view.provenance.as_json()))
            assert found[-1].as_json() == view.provenance.as_json()
            owners = found[-1].as_json()["owners"]
            assert {path: len(each) for path, each in owners.items()} == {
                name: len(view.server[name]) for name in owners
            }
            assert set(owners) == {"features", "labels", "age"}
            assert owners["features"] == owners["labels"] == owners["age"]

    run(job, rounds=3, cohort=2, observers=[Keep()])
    with pytest.raises(RunError, match="damaged"):
        Provenance.from_json({"owners": 3})


FILE = """
roles = ["model", "features", "labels"]
most_releases_of_row = 2
[site.2]
never = [3]
[site.4]
revoked_from = 3
"""


def test_a_run_reads_the_file_and_remembers_releases_over_a_resume(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(FILE)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    chosen = small(rounds=5, cohort=6.0, policy=str(policy), checkpoint_seconds=0.0)

    class Stop:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 1:
                raise KeyboardInterrupt

    fewfed.run("flea", chosen, Training(epochs=1), values={"history": 2}, out=whole)
    with pytest.raises(KeyboardInterrupt):
        fewfed.run("flea", chosen, Training(epochs=1), values={"history": 2}, out=parts, observers=[Stop()])
    fewfed.resume(parts)
    assert records(parts) == records(whole)
    shared = [record["phases"]["share"]["rows"]["features"] for record in records(whole)]
    assert shared[0] == shared[1] > 0
    assert shared[2:] == [0, 0, 0]
    assert [{one["client"] for one in record["failed"]} for record in records(whole)] == [set(), set(), *[{4}] * 3]


@pytest.mark.parametrize("method", ["flea", "potluck"])
def test_a_site_that_changes_its_mind_is_heard_at_the_next_resume(tmp_path: Path, method: str) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("")

    class Stop:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 1:
                raise KeyboardInterrupt

    chosen = small(rounds=3, cohort=6.0, policy=str(policy), checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        fewfed.run(method, chosen, Training(epochs=1), out=tmp_path / "run", observers=[Stop()])
    policy.write_text("[site.1]\nrevoked_from = 1\n")
    fewfed.resume(tmp_path / "run")
    resumed = records(tmp_path / "run")[-1]
    assert {one["client"] for one in resumed["failed"]} == {1}
    events = [event for record in RunFolder(tmp_path / "run").metrics() for event in record["events"]]
    assert [event["clients"] for event in events if event["kind"] == "withdrawn"] == [[1]]


@pytest.mark.parametrize("history", [1, 5])
def test_rows_sent_before_there_was_a_policy_are_not_sent_on_after_it(tmp_path: Path, history: int) -> None:
    """Nobody wrote down whose they are: the run ends before the first exchange, with a sentence."""
    policy, told = tmp_path / "policy.toml", list[int]()
    policy.write_text("[site.1]\nrevoked_from = 2\n")

    class Stop:
        def after_round(self, view: RoundView) -> None:
            told.append(view.clock.round)
            if view.clock.round == 1:
                raise KeyboardInterrupt

    chosen = small(rounds=4, cohort=6.0, checkpoint_seconds=0.0)
    values, folder = {"history": history}, tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fewfed.run("flea", chosen, Training(epochs=1), values=values, out=folder, observers=[Stop()])
    with pytest.raises(RunError, match=r"rows of clients 1 were withdrawn, but .* not written down .* had no policy"):
        fewfed.resume(folder, policy=str(policy), observers=[Stop()])
    assert told == [0, 1]
    policy.write_text("never = [3]\n")  # Without a revocation there is nothing to take out.
    assert len(fewfed.resume(folder, policy=str(policy)).history) == 4


def test_a_policy_about_classes_needs_rows_that_have_one() -> None:
    job = job_of("fedavg", digits_federation(3, 8))
    measured = dataclasses.replace(job, task=Regression())
    for policy in (Policy(never=("1",)), Policy(min_rows_of_class=2)):
        for policies in (Policies(policy), Policies(Policy(), {"2": policy})):
            assert gate_of(policies, job, list("0123456789"), {})
            with pytest.raises(ConfigError, match="have no class each"):
                gate_of(policies, measured, list("0123456789"), {})


def sites_named(names: tuple[str, ...], *spoken_of: str) -> list[int]:
    """The least number of rows behind a row at each site, where a policy asks those it speaks of for 2, 3 ..."""
    federation = digits_federation(len(names), 8)
    federation.client_groups = names
    policies = {name: Policy(group=2 + number) for number, name in enumerate(spoken_of)}
    return [
        each.group for each in gate_of(Policies(Policy(), policies), job_of("fedavg", federation), [], {}).by_client
    ]


def test_a_site_is_spoken_of_by_its_name_or_its_number() -> None:
    assert sites_named(("north", "south"), "north", "1") == [2, 3]
    with pytest.raises(ConfigError, match="site 'north' twice"):
        sites_named(("north", "south"), "north", "0")


def test_a_number_that_is_the_name_of_a_site_means_that_site() -> None:
    assert sites_named(("1", "2", "3"), "1", "2") == [2, 3, 1]
    assert sites_named(("1", "0"), "0") == [1, 2]
    assert sites_named(("1", "2"), "0", "2") == [2, 3]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without an end")
def test_a_file_without_an_end_is_no_policy() -> None:
    with pytest.raises(ConfigError, match="no ordinary file"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roles = ['models']", "roles has 'models': expected some of model"),
        ("min_rows = 3", "unknown field of a policy 'min_rows'"),
        ("group = 0", "group = 0: expected >= 1"),
        ("opt_out = [-1]", "numbers of rows from 0 on"),
        ("never = ['cat']", "class 'cat', which the data do not have"),
        ("[site.west]\ngroup = 2", "site 'west', which is none of the run's"),
        ("stages = ['conv9']", "conv9"),
        ("site = 3", "a table for each site"),
        ("roles = [", "is not TOML"),
        ("roles = ['labels']", "no site may take part in phase 'train'"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises((ConfigError, DataError), match=said):
        fewfed.run("flea", small(policy=str(tmp_path / "policy.toml")), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_policy_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the policy"):
        read(tmp_path / "nothing.toml")


FEDERATED = DataOptions(normalise="federated")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roles = ['model']", "site '0' does not send them.*'count' is of role counts, and allowed are model; exp"),
        ("[site.3]\nroles = ['model', 'counts']", "site '3' .*'sum' is of role statistics, and allowed are model, co"),
        ("[site.2]\nrevoked_from = 1", "site '2' does not send them.*it was revoked from round 1 on"),
        ("[site.1]\nmin_rows_of_class = 1000", "site '1' does not send them.*tells of classes that may not leave"),
    ],
)
def test_inputs_are_not_measured_where_a_site_does_not_let_sums_leave(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    chosen = small(policy=str(tmp_path / "policy.toml"), rounds=1)
    with pytest.raises(ConfigError, match=rf"normalise = federated sends sums over the inputs of all sites.*{said}"):
        fewfed.run("fedavg", chosen, Training(epochs=1), options=FEDERATED, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(fewfed.run("fedavg", chosen, Training(epochs=1), out=tmp_path / "other").history) == 1


def test_inputs_are_measured_where_all_sites_let_sums_leave_and_a_site_may_be_revoked_later(tmp_path: Path) -> None:
    """What was measured when the run began is not measured again when it is resumed."""
    policy = tmp_path / "policy.toml"
    policy.write_text("roles = ['model', 'statistics', 'counts']")

    class Stop:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 1:
                raise KeyboardInterrupt

    chosen = small(rounds=3, cohort=6.0, policy=str(policy), checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        fewfed.run(
            "fedavg", chosen, Training(epochs=1), options=FEDERATED, out=tmp_path / "run", observers=[Stop()]
        )  # fmt: skip
    policy.write_text("roles = ['model']\n[site.1]\nrevoked_from = 1\n")
    fewfed.resume(tmp_path / "run")
    assert {one["client"] for one in records(tmp_path / "run")[-1]["failed"]} == {1}


def test_a_sites_own_budget_keeps_it_and_nobody_else_from_going_on(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[site.0]\nepsilon = 3.0\n")
    chosen = small(rounds=3, cohort=6.0, policy=str(tmp_path / "policy.toml"))
    fewfed.run("dp(fedavg)", chosen, Training(epochs=1), values={"sigma": 2.0}, out=tmp_path / "run")
    failed = [one for record in records(tmp_path / "run") for one in record["failed"]]
    assert {one["client"] for one in failed} == {0}
    assert {one["cause"] for one in failed} == {"budget"}


def test_no_policy_allows_all_rows_in_one_place() -> None:
    from fewfed.methods.single import Single

    gate = PolicyGate((Policy(),), (frozenset(),))
    with pytest.raises(ConfigError, match="takes all rows to one place"):
        refuse_nobody(gate, Single().phases(Clock(0, 1, 1)), Clock(0, 1, 1))


def test_failures_of_gates_say_who_forbade_it() -> None:
    assert Failed(0, "train", "why", "policy").was_forbidden
    assert not Failed(0, "train", "why").was_forbidden


def test_attacks_know_which_rows_left_and_which_a_policy_kept_back() -> None:
    job = guarded(FLea(share=1.0), Policy(never=("3", "1"), most_releases_of_row=1))
    spied, recorder = played(job, rounds=2)
    state = job.method.client_init(job.setup)
    for round, client, arrays in spied.sent("share"):
        view = recorder.views[round]
        result = next(one for one in view.phases if one.phase.name == "share")
        found = of_client(job, result.phase, view.clock, result.shared, Member(client, {}, state), arrays)
        assert len(found) == len(found.origins) == len(arrays["labels"])
        assert torch.equal(found.rows.y[found.origins.flatten()], arrays["labels"])
        assert bool(len(found)) == (round == 0)
    strange = {**arrays, "features": torch.ones(1, *arrays["features"].shape[1:])}
    with pytest.raises(RunError, match="that its method would not send"):
        of_client(job, result.phase, view.clock, result.shared, Member(0, {}, state), strange)
