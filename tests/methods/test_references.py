"""The two references without a federation, and FedAvg, against plain training written with torch's own modules."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.methods.local import Local
from fewfed.methods.registry import choose
from fewfed.methods.single import Single
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import digits, digits_federation, in_double, job_of, run, same, states, traffic


def perceptron() -> nn.Sequential:
    # No bias before BatchNorm: its true gradient is zero, and Adam would blow rounding errors up to full steps.
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def small_job(method: str, federation: GeneratedFederation) -> Job:
    return job_of(method, federation, net=Network.of(perceptron()))


def trained(job: Job, module: nn.Sequential, data: Examples, client: int, rounds: list[int]) -> nn.Sequential:
    """What a reader of the papers would write: Adam anew each round, the plan's batches."""
    for round in rounds:
        optimizer = torch.optim.Adam(module.parameters(), job.training.lr_at(round))
        module.train()
        for rows in job.plan.batches(round, "train", client, len(data), job.training.epochs):
            optimizer.zero_grad()
            cross_entropy(module(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    return module


def assert_model_is(model: Tree, module: nn.Sequential) -> None:
    state = {
        f"layer{int(key.split('.')[0]) + 1}.{key.split('.', 1)[1]}": value
        for key, value in module.state_dict().items()
        if "num_batches" not in key
    }
    flat = {**model["params"], **model["buffers"]}
    assert flat.keys() == state.keys()
    for name, value in state.items():
        assert torch.allclose(flat[name], value, atol=2e-5), name


def test_local_is_plain_training_that_goes_on_from_round_to_round() -> None:
    federation = digits_federation(4, 20)
    job = small_job("local", federation)
    recorder = run(job, rounds=4, cohort=2)
    kept = states(recorder.views[-1].executor, 4)
    for client in range(4):
        taken = [view.clock.round for view in recorder.views if client in view.cohort]
        assert (client in kept) == bool(taken)
        if taken:
            module = trained(job, perceptron(), federation.examples(client), client, taken)
            assert_model_is(kept[client]["model"], module)


def test_local_sends_and_receives_nothing() -> None:
    recorder = run(job_of("local"), rounds=2)
    assert all(metrics["bytes"] == traffic(0, 0) for metrics in recorder.metrics)
    assert same(recorder.server["model"], job_of("local").net.model())


def test_a_local_client_never_sees_the_others_rows() -> None:
    plain = digits_federation(3, 16)
    changed = GeneratedFederation(
        3,
        lambda k: plain.examples(k) if k == 1 else Examples(-plain.examples(k).x, plain.examples(k).y),
        plain.test,
        10,
    )
    ours, theirs = (run(job_of("local", federation), rounds=2, cohort=3) for federation in (plain, changed))
    one, other = (states(ended.views[-1].executor, 3)[1] for ended in (ours, theirs))
    assert same(one, other)


def test_local_models_are_scored_each_and_averaged() -> None:
    job = job_of("local")
    recorder = run(job, rounds=1, cohort=3, observers=[Evaluate(clients=0)])
    test = digits()[1]
    kept = states(recorder.views[-1].executor, 10)
    rates = []
    for client in range(10):
        model = kept[client]["model"] if client in kept else job.net.model()
        rates.append(float((job.net.apply(model, test.x, train=False).argmax(1) == test.y).float().mean()))
    metrics = recorder.metrics[-1]
    assert metrics["accuracy"] == pytest.approx(sum(rates) / 10, abs=1e-6)
    assert metrics["evaluated_clients"] == 10


def test_single_is_plain_training_on_everybodys_rows() -> None:
    federation = digits_federation(5, 12)
    job = small_job("single", federation)
    recorder = run(job, rounds=2, cohort=2)
    module = trained(job, perceptron(), federation.union(), PSEUDO_CLIENT, [0, 1])
    assert_model_is(recorder.server["model"], module)
    assert [metrics["steps"] for metrics in recorder.metrics] == [2 * -(-60 // 8)] * 2
    assert all(metrics["bytes"] == traffic(0, 0) for metrics in recorder.metrics)


def test_sems_single_set_has_one_adam_for_the_whole_run() -> None:
    """As its authors write it: the optimiser is made before the first round, and never again."""
    federation = digits_federation(5, 12)
    job = in_double(small_job("single:sem", federation))
    job = dataclasses.replace(job, net=Network.of(perceptron().double()))
    recorder = run(job, rounds=3, cohort=2)
    module, data = perceptron().double(), job.federation.union()
    optimizer = torch.optim.Adam(module.parameters())
    for round in range(3):
        for rows in job.plan.batches(round, "train", PSEUDO_CLIENT, len(data), job.training.epochs):
            optimizer.zero_grad()
            cross_entropy(module(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
        model = recorder.views[round].server["model"]
        for name, value in module.named_parameters():
            place, rest = name.split(".")
            assert torch.allclose(model["params"][f"layer{int(place) + 1}.{rest}"], value, rtol=0, atol=1e-9)
    anew = trained(job, perceptron().double(), data, PSEUDO_CLIENT, [0, 1, 2])
    assert not torch.allclose(model["params"]["layer5.weight"], anew[4].weight, atol=1e-3)
    assert all(metrics["bytes"] == traffic(0, 0) for metrics in recorder.metrics)


def test_single_does_not_depend_on_the_cohort() -> None:
    federation = digits_federation(5, 12)
    one, other = (run(small_job("single", federation), rounds=2, cohort=cohort) for cohort in (1, 4))
    assert same(one.server, other.server)


def test_fedavg_is_the_weighted_mean_of_plain_training() -> None:
    federation = digits_federation(4, [8, 12, 20, 31])
    job = small_job("fedavg", federation)
    recorder = run(job, rounds=1, cohort=3)
    cohort = sorted(recorder.views[0].cohort)
    modules = [trained(job, perceptron(), federation.examples(client), client, [0]) for client in cohort]
    weights = [federation.size(client) for client in cohort]
    mean = perceptron()
    mean.load_state_dict(
        {
            key: (
                sum(w * module.state_dict()[key].double() for w, module in zip(weights, modules, strict=True))
                / sum(weights)
            )
            for key in mean.state_dict()
        }
    )
    assert_model_is(recorder.server["model"], mean)


def test_fedavg_with_one_client_is_that_client() -> None:
    federation = digits_federation(1, 30)
    job = small_job("fedavg", federation)
    recorder = run(job, rounds=3, cohort=1)
    module = trained(job, perceptron(), federation.examples(0), 0, [0, 1, 2])
    assert_model_is(recorder.server["model"], module)


@pytest.mark.parametrize("spec", ["fedprox", "fedprox:released", "fedmix", "fedmix:taylor", "flea", "local"])
def test_trap_43_every_method_takes_the_same_number_of_steps(spec: str) -> None:
    federation = digits_federation(6, [5, 8, 9, 16, 17, 30])
    expected = [metrics["steps"] for metrics in run(job_of("fedavg", federation), rounds=2).metrics]
    assert [metrics["steps"] for metrics in run(job_of(spec, federation), rounds=2).metrics] == expected
    assert choose(spec).method.steps_differ == ""


@pytest.mark.parametrize("spec", ["feddata", "single", "flea:official"])
def test_trap_43_a_method_with_other_steps_says_so(spec: str) -> None:
    federation = digits_federation(6, [5, 8, 9, 16, 17, 30])
    expected = [metrics["steps"] for metrics in run(job_of("fedavg", federation), rounds=2).metrics]
    assert [metrics["steps"] for metrics in run(job_of(spec, federation), rounds=2).metrics] != expected
    assert choose(spec).method.steps_differ


def test_references_say_what_they_are() -> None:
    assert Local.personal_model
    assert not Single.personal_model
    assert Local.family == Single.family == "reference"
    (phase,) = Local().phases(Clock(0, 1, 1))
    assert tree.nbytes(phase.does.broadcast({})) == 0
