"""One client's turn: the training is torch's own, and what goes wrong is reported with its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from probes import ExtraTerm, Interrupted, fail
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewfed import networks
from fewfed.conformance.differences import differences
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import RunError
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import digits_federation, job_of, run

OPTIMIZERS: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": ({"optimizer": "sgd", "lr": 0.1}, torch.optim.SGD, {"lr": 0.1}),
    "momentum": (
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "adam": ({"optimizer": "adam", "lr": 0.01}, torch.optim.Adam, {"lr": 0.01}),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        torch.optim.AdamW,
        {"lr": 0.01, "weight_decay": 0.1},
    ),
}


def turn(job: Job, client: int = 0, round: int = 0, shared: Tree | None = None) -> Finished | Failed:
    clock = Clock(round, 10, job.training.epochs)
    phase = job.method.phases(clock)[0]
    return run_turn(job, phase, clock, shared or {"model": job.net.model()}, Member(client))


def done(job: Job, client: int = 0) -> Finished:
    outcome = turn(job, client)
    assert isinstance(outcome, Finished), outcome
    return outcome


def failed(job: Job, client: int = 0) -> Failed:
    outcome = turn(job, client)
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_training_is_a_plain_torch_loop_over_the_planned_batches(name: str) -> None:
    settings, optimizer_class, options = OPTIMIZERS[name]
    job = job_of("fedavg", net=networks.build("mlp", (1, 8, 8), 10, 3), training={**settings, "epochs": 3})
    data = job.federation.examples(1)
    module = nn.Sequential(nn.Flatten(), *(job.net.module(s) for s in ("hidden1", "hidden2", "head")))
    names = [f"{s}.{k}" for s in ("hidden1", "hidden2", "head") for k, _ in job.net.module(s).named_parameters()]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer = optimizer_class(module.parameters(), **options)
    losses = []
    for rows in job.plan.batches(0, "train", 1, len(data), 3):
        optimizer.zero_grad()
        loss = cross_entropy(module(data.x[rows]), data.y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    expected = dict(zip(names, [p.detach().clone() for p in module.parameters()], strict=True))
    module.load_state_dict(before)

    outcome = done(job, client=1)
    assert outcome.packet.steps == len(losses)
    assert outcome.packet.weight == len(data)
    assert outcome.packet.terms == {"task": pytest.approx(sum(losses) / len(losses), rel=1e-5)}
    trained = outcome.packet.arrays["model"]["params"]
    for key in names:
        torch.testing.assert_close(trained[key], expected[key], rtol=1e-4, atol=1e-6)
        assert not torch.equal(trained[key], job.net.model()["params"][key]), "nothing was trained"


def test_the_learning_rate_of_a_round_is_the_one_used() -> None:
    job = job_of(
        "fedavg", digits_federation(1, 8), training={"optimizer": "sgd", "lr": 0.1, "lr_decay": 0.5, "epochs": 1}
    )
    start = job.net.model()["params"]["head.weight"]
    moves = []
    for round in (0, 1):
        outcome = turn(job, round=round)
        assert isinstance(outcome, Finished)
        moves.append(outcome.packet.arrays["model"]["params"]["head.weight"] - start)
    # Eight rows in one batch of eight: the gradient is the same in both rounds but for the order of its sum.
    torch.testing.assert_close(moves[0], 2 * moves[1], rtol=1e-3, atol=1e-6)


def test_batch_statistics_are_updated_in_the_upload_and_not_in_what_was_broadcast() -> None:
    job = job_of("fedavg")
    shared = {"model": job.net.model()}
    outcome = turn(job, shared=shared)
    assert isinstance(outcome, Finished)
    assert not differences(shared, {"model": job.net.model()})
    assert differences(outcome.packet.arrays["model"]["buffers"], shared["model"]["buffers"])


def test_uploads_carry_no_gradient_history() -> None:
    outcome = done(job_of("fedavg"))
    assert not any(leaf.requires_grad for part in outcome.packet.arrays["model"].values() for leaf in part.values())


def test_a_client_without_samples_is_reported() -> None:
    failure = failed(job_of("fedavg", digits_federation(3, [4, 0, 4])), client=1)
    assert (failure.client, failure.phase) == (1, "train")
    assert "no samples" in failure.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_reported_with_the_name_of_its_term(value: float) -> None:
    failure = failed(job_of(ExtraTerm(client=0, value=value)))
    assert "'extra'" in failure.reason
    assert str(value) in failure.reason
    assert "lr" in failure.reason


def test_a_training_that_explodes_is_reported() -> None:
    job = job_of("fedavg", net=networks.build("mlp", (1, 8, 8), 10, 3), training={"optimizer": "sgd", "lr": 1e30})
    assert "'task'" in failed(job).reason


def test_an_exception_in_a_loss_is_reported_with_phase_client_and_cause() -> None:
    job = job_of(Interrupted(happens=fail(2)))
    failure = failed(job, client=2)
    assert (failure.client, failure.phase, failure.cause) == (2, "train", "client")
    assert failure.reason.startswith("RuntimeError: the sensor is unplugged (in loss, probes.py, line ")
    done(job, client=1)


@dataclass(frozen=True)
class Watched(FedAvg):
    """Reports a term that must not be optimised."""

    observed = frozenset({"norm"})

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        norm = torch.stack([value.square().sum() for value in work["params"].values()]).sum()
        return {**super().loss(work, ctx, batch), "norm": 100 * norm}


def test_observed_terms_are_reported_but_not_optimised() -> None:
    plain, watched = done(job_of("fedavg")), done(job_of(Watched()))
    assert not differences(plain.packet.arrays, watched.packet.arrays)
    assert watched.packet.terms["task"] == plain.packet.terms["task"]
    assert watched.packet.terms["norm"] > 0


def test_when_every_member_fails_the_run_stops_and_says_where() -> None:
    job = job_of(Interrupted(happens=fail(0, 1, 2)), digits_federation(3, 4))
    with pytest.raises(RunError, match="round 1, phase 'train': all 3 members failed") as error:
        run(job, rounds=2, cohort=3)
    assert "client 0" in str(error.value)
    assert "the sensor is unplugged" in str(error.value)
