"""The round loop: who takes part, in which order, how many bytes travel, and what a failure changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from probes import Interrupted, fail

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import PSEUDO_CLIENT, Job, members_of
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Finished
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import RunError
from fewfed.method import Combined, Context, Part, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import MODEL, NOTHING, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.tree import Tree
from support import digits_federation, digits_network, job_of, linear_network, run, states, traffic

ROW_BYTES = 3 * 8
MODEL_BYTES = 2 * 3 * 8


def federation(sizes: list[int]) -> GeneratedFederation:
    """Clients with rows of three float64 numbers and two classes."""

    def make(client: int) -> Examples:
        generator = torch.Generator().manual_seed(client)
        x = torch.randn(sizes[client], 3, generator=generator, dtype=torch.float64)
        return Examples(x, (x.sum(1) > 0).long())

    return GeneratedFederation(len(sizes), make, make(0), classes=2)


def job(method: FedAvg, sizes: list[int], **training: Any) -> Job:
    return job_of(method, federation(sizes), net=linear_network([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]), training=training)


@dataclass(frozen=True)
class Survey(FedAvg):
    """Three exchanges a round: everybody reports, the round's clients train, the server trains on what it collected."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        asked = {"rows": Upload(Combine.CONCAT, Role.INPUTS, rows=1.0), "size": Upload(Combine.SUM, Role.COUNTS)}
        judged = {**MODEL, "seen": Upload(Combine.SUM, Role.STATISTICS)}
        return (
            Phase("ask", Ask(self), 0, asked, Cohort.ALL),
            Phase("train", self, clock.epochs, keeps_state=True),
            Phase("judge", Judge(self), 1, judged, Cohort.SERVER, training={"batch": 100}),
        )

    def client_init(self, setup: Setup) -> Tree:
        return {"times": torch.zeros((), dtype=torch.int64)}

    def server_init(self, setup: Setup) -> Tree:
        return {**super().server_init(setup), "order": torch.zeros(0, dtype=torch.int64)}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "rows")}

    def personal(self, server: Tree, client: int) -> Tree:
        return {"own": torch.full((5,), float(client))}

    def end(self, work: Tree, ctx: Context) -> Report:
        assert ctx.personal["own"].tolist() == [float(ctx.client)] * 5
        return super().end(work, ctx)._replace(state={"times": ctx.state["times"] + 1})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return in_turn(2, super().absorb(server, combined))


class Ask(Part[Survey]):
    """Everybody sends two rows, and says how many it has."""

    def broadcast(self, server: Tree) -> Tree:
        return {}

    def begin(self, ctx: Context) -> Tree:
        return {}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"rows": ctx.data.x[:2], "size": torch.tensor(float(ctx.size))}, {}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return in_turn(1, super().absorb(server, combined))


class Judge(Part[Survey]):
    """The server trains on the rows it has."""

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "rows")}

    def data(self, ctx: Context) -> Examples:
        return Examples(ctx.shared["rows"], torch.zeros(len(ctx.shared["rows"]), dtype=torch.int64))

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({**super().end(work, ctx).upload, "seen": torch.tensor(float(ctx.client))}, {}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return in_turn(3, super().absorb(server, combined))


def in_turn(number: int, server: Tree) -> Tree:
    """The server with a note of which phase it absorbed."""
    return {**server, "order": torch.cat([server["order"], torch.tensor([number])])}


SIZES = [4, 3, 6, 1, 5]


def test_phases_run_in_the_order_a_method_gives_them_each_absorbed_before_the_next() -> None:
    recorder = run(job(Survey(), SIZES), rounds=3, cohort=2)
    assert recorder.server["order"].tolist() == [1, 2, 3] * 3
    assert [result.phase.name for result in recorder.views[0].phases] == ["ask", "train", "judge"]


def test_bytes_of_every_phase_are_what_travels() -> None:
    recorder = run(job(Survey(), SIZES), rounds=1, cohort=2)
    phases = recorder.metrics[0]["phases"]
    shared_rows = 2 + 2 + 2 + 1 + 2
    assert phases["ask"]["bytes_up"] == shared_rows * ROW_BYTES + 5 * 4
    assert phases["ask"]["bytes_down"] == 0
    assert phases["ask"]["rows"] == {"rows": shared_rows}
    assert phases["train"]["bytes_up"] == 2 * MODEL_BYTES
    assert phases["train"]["bytes_down"] == 2 * (MODEL_BYTES + shared_rows * ROW_BYTES + 5 * 4)
    assert (phases["judge"]["bytes_up"], phases["judge"]["bytes_down"]) == (0, 0), "nothing leaves the server"
    assert recorder.metrics[0]["bytes"] == traffic(
        up=phases["ask"]["bytes_up"] + phases["train"]["bytes_up"],
        down=phases["ask"]["bytes_down"] + phases["train"]["bytes_down"],
    )


def test_fedavg_sends_and_returns_one_model_a_client_and_round() -> None:
    fed = digits_federation(6, 4)
    model = tree.nbytes(digits_network().model())
    for metrics in run(job_of("fedavg", fed), rounds=2, cohort=4).metrics:
        assert metrics["bytes"] == traffic(4 * model, 4 * model)


def test_each_cohort_has_its_members() -> None:
    recorder = run(job(Survey(), SIZES), rounds=1, cohort=2)
    ask, train, judge = recorder.views[0].phases
    assert ask.combined.clients == (0, 1, 2, 3, 4)
    assert float(ask.combined.values["size"]) == sum(SIZES)
    assert train.combined.clients == tuple(sorted(recorder.views[0].cohort))
    assert len(train.combined.clients) == 2
    assert judge.combined.clients == (PSEUDO_CLIENT,)
    assert float(judge.combined.values["seen"]) == PSEUDO_CLIENT
    assert judge.record.steps == 1


def test_members_come_in_ascending_order_whatever_was_drawn() -> None:
    assert list(members_of(Phase("train", FedAvg(), 1), [5, 0, 3], 9)) == [0, 3, 5]
    assert list(members_of(Phase("train", FedAvg(), 1, cohort=Cohort.ALL), [5], 4)) == [0, 1, 2, 3]
    assert list(members_of(Phase("train", FedAvg(), 1, cohort=Cohort.UNION), [5], 4)) == [PSEUDO_CLIENT]


@dataclass(frozen=True)
class Together(FedAvg):
    """Trains on everybody's rows in one place."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {**MODEL, "x": Upload(Combine.KEEP, Role.INPUTS, rows=1.0)}
        return (Phase("train", self, clock.epochs, uploads, Cohort.UNION),)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "x": ctx.data.x})


def test_a_union_holds_every_clients_rows_and_sends_nothing() -> None:
    made = job(Together(), SIZES, epochs=2, batch=8)
    result = run(made, rounds=1, cohort=2).views[0].phases[0]
    everything = torch.cat([made.federation.examples(k).x for k in range(len(SIZES))])
    assert torch.equal(result.combined.values["x"][str(PSEUDO_CLIENT)], everything)
    assert result.combined.weights == (float(sum(SIZES)),)
    assert result.record.steps == 2 * -(-sum(SIZES) // 8)
    assert (result.record.traffic.up, result.record.traffic.down) == (0, 0)


def test_states_are_handed_back_to_the_client_that_left_them() -> None:
    made = job(Survey(), SIZES)
    executor = Sequential(made)
    run_rounds(made, executor, [], rounds=6, cohort=2)
    left = states(executor, len(SIZES))
    drawn = [client for round in range(6) for client in made.plan.cohort(round, len(SIZES), 2)]
    for client in range(len(SIZES)):
        assert (int(left[client]["times"]) if client in left else 0) == drawn.count(client)


@dataclass(frozen=True)
class Secretive(FedAvg):
    """Keeps something without saying so."""

    def end(self, work: Tree, ctx: Context) -> Report:
        return super().end(work, ctx)._replace(state={"kept": torch.ones(1)})


def test_keeping_state_without_declaring_it_is_an_error_that_names_the_phase() -> None:
    with pytest.raises(RunError, match=r"phase 'train'.*keeps_state"):
        run(job(Secretive(), SIZES), rounds=1)


@dataclass(frozen=True)
class Silent(FedAvg):
    """Everybody trains, nothing is uploaded."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, NOTHING),)

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {}, 1.0)


def test_a_phase_without_uploads_leaves_the_server_as_it_was() -> None:
    made = job(Silent(), SIZES)
    recorder = run(made, rounds=2)
    assert not differences(recorder.server, {"model": made.net.model()})
    assert recorder.metrics[0]["bytes"]["up"] == 0
    assert recorder.metrics[0]["phases"]["train"]["clients"] == 3


def test_a_failing_member_is_left_out_of_the_mean_and_nothing_else_changes() -> None:
    sizes = [4, 3, 6, 1, 5]
    made = job(Interrupted(happens=fail(2)), sizes)
    recorder = run(made, rounds=1, cohort=5)
    phase = made.method.phases(Clock(0, 1, made.training.epochs))[0]
    shared = {"model": made.net.model()}
    outcomes = [run_turn(made, phase, Clock(0, 1, made.training.epochs), shared, Member(k)) for k in (0, 1, 3, 4)]
    weights = [
        outcome.packet.arrays["model"]["params"]["head.weight"].numpy()
        for outcome in outcomes
        if isinstance(outcome, Finished)
    ]
    expected = np.average(np.stack(weights), axis=0, weights=[4, 3, 1, 5])
    np.testing.assert_allclose(recorder.server["model"]["params"]["head.weight"].numpy(), expected, rtol=1e-14)
    result = recorder.views[0].phases[0]
    assert result.combined.clients == (0, 1, 3, 4)
    assert result.combined.weights == (4.0, 3.0, 1.0, 5.0)
    (failure,) = recorder.metrics[0]["failed"]
    assert (failure["client"], failure["phase"], failure["cause"]) == (2, "train", "client")
    assert failure["reason"].startswith("RuntimeError: the sensor is unplugged (in loss, probes.py, line ")
    assert recorder.metrics[0]["bytes"] == traffic(4 * MODEL_BYTES, 5 * MODEL_BYTES)


def test_a_failing_member_keeps_the_state_it_had() -> None:
    @dataclass(frozen=True)
    class FailsLater(Survey):
        def end(self, work: Tree, ctx: Context) -> Report:
            if ctx.client == 1 and not ctx.clock.first:
                raise RuntimeError("gone")
            return super().end(work, ctx)

    made = job(FailsLater(), SIZES)
    executor = Sequential(made)
    run_rounds(made, executor, [], rounds=3, cohort=5)
    assert [int(state["times"]) for state in states(executor, 5).values()] == [3, 1, 3, 3, 3]


def test_loss_terms_of_a_phase_are_means_over_all_steps() -> None:
    made = job(FedAvg(), [4, 16], epochs=1, batch=4)
    phase, clock = Phase("train", FedAvg(), 1), Clock(0, 1, 1)
    outcomes = [run_turn(made, phase, clock, {"model": made.net.model()}, Member(k)) for k in (0, 1)]
    few, many = (outcome.packet.terms["task"] for outcome in outcomes if isinstance(outcome, Finished))
    metrics = run(made, rounds=1, cohort=2).metrics[0]
    assert metrics["steps"] == 5
    assert metrics["phases"]["train"]["terms"]["task"] == pytest.approx((1 * few + 4 * many) / 5)


def test_rounds_count_from_one_in_what_a_reader_sees() -> None:
    recorder = run(job(FedAvg(), SIZES, lr=0.5, lr_decay=0.5), rounds=3)
    assert [metrics["round"] for metrics in recorder.metrics] == [1, 2, 3]
    assert [metrics["lr"] for metrics in recorder.metrics] == [0.5, 0.25, 0.125]
