"""Kernels channels last in worker processes: the same numbers to rounding, and the trial that says whether it pays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from fewfed import networks, tree
from fewfed.conformance.differences import differences
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executors.workers import trial
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.executors.workers.trial import Way
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.layout import Layout, channels_last, has_kernels, in_reading_order
from fewfed.engine.outcomes import Finished
from fewfed.engine.scoring import evaluate
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.runs.executors import Surroundings, executor_for, refuse_unused
from fewfed.runs.experiment import resolve
from fewfed.tree import Tree
from support import EXACT, Recorder, digits_federation, gap, in_double, job_of, run

pytestmark = pytest.mark.timeout(120)

SGD = {"optimizer": "sgd", "lr": 0.02, "epochs": 2, "batch": 8}


class Viewed(nn.Module):
    """A layer that takes for granted how features lie in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def small_job(method: str = "fedavg", clients: int = 6, net: Network | None = None) -> Job:
    chosen = choose(method)
    rows = [12, 9, 16, 5, 12, 8, 20, 12][:clients]
    training = {**chosen.training, **SGD}
    return in_double(job_of(chosen.method, digits_federation(clients, rows), net=net, training=training))


def network(*after: nn.Module) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Network.of(nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), *after, nn.Linear(54, 10)))


@contextmanager
def workers(job: Job, layout: Layout, stack: int = 1) -> Iterator[Workers]:
    executor = Workers(job, options=Options(2, stack, layout))
    try:
        yield executor
    finally:
        executor.close()


def ended(job: Job, layout: Layout, stack: int = 1) -> Recorder:
    with workers(job, layout, stack) as executor:
        return run(job, cohort=len(job.federation), executor=executor)


def reference(job: Job) -> Tree:
    return run(job, cohort=len(job.federation)).server


@pytest.mark.parametrize("channels", [1, 3])
def test_kernels_lie_channels_last_while_they_train_and_in_reading_order_afterwards(channels: int) -> None:
    kernel, matrix = torch.randn(6, channels, 5, 5), torch.randn(4, 3)
    params = channels_last({"kernel": kernel, "matrix": matrix})
    assert params["kernel"].stride()[1] == 1
    assert params["matrix"] is matrix
    back = in_reading_order({"model": params})["model"]
    assert torch.equal(back["kernel"], kernel)
    assert back["kernel"].stride() == kernel.stride()


def test_one_kernel_a_row_and_transposed_leaves_come_back_in_reading_order() -> None:
    leaves = {"single": torch.randn(2, 3, 1, 1), "turned": torch.randn(4, 5).T}
    back = in_reading_order(channels_last(leaves))
    assert back["single"].stride() == (3, 1, 1, 1)
    assert back["turned"].is_contiguous()


@pytest.mark.parametrize("name", ["fedavg", "local", "scaffold", "flea", "fedntd", "sem(fedavg)"])
def test_what_leaves_a_turn_is_laid_out_as_ever_and_agrees_to_rounding(name: str) -> None:
    job = small_job(name)
    clock = Clock(0, 2, 2)
    phase = job.method.phases(clock)[0]
    server = job.method.server_init(job.setup)
    shared = phase.does.broadcast(server)
    member = Member(2, phase.does.personal(server, 2), job.method.client_init(job.setup))
    plain, last = (run_turn(job, phase, clock, shared, member, way) for way in (False, True))
    assert isinstance(plain, Finished)
    assert isinstance(last, Finished)
    for ours, theirs in ((last.packet.arrays, plain.packet.arrays), (last.state, plain.state)):
        strides = {path: leaf.stride() for path, leaf in tree.leaves(ours)}
        assert strides == {path: torch.empty(leaf.shape).stride() for path, leaf in tree.leaves(ours)}
        assert not list(tree.leaves(theirs)) or gap(ours, theirs) < EXACT
    assert (last.packet.weight, last.packet.steps) == (plain.packet.weight, plain.packet.steps)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "flea", "fedfa", "fedbn", "fedsam", "sem(fedavg)"])
def test_runs_channels_last_agree_with_the_reference(name: str) -> None:
    job = small_job(name)
    found, expected = ended(job, "channels_last").server, reference(job)
    assert gap(found, expected) < EXACT
    assert differences(found, expected)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_moments_follow_their_kernels(optimizer: str) -> None:
    job = job_of("fedavg", digits_federation(2, 8), training={**SGD, "optimizer": optimizer, "lr": 1e-3})
    job = in_double(job)
    assert gap(ended(job, "channels_last").server, reference(job)) < EXACT


def test_what_a_network_drops_does_not_depend_on_the_layout() -> None:
    job = small_job(net=network(nn.Dropout(0.5), nn.Flatten()))
    assert job.net.is_random
    found = ended(job, "channels_last").server
    assert gap(found, reference(job)) < EXACT
    other = small_job(net=network(nn.Dropout(0.3), nn.Flatten()))
    assert gap(found, reference(other)) > 1e-3


def test_scores_channels_last_agree_and_are_in_parts_as_ever() -> None:
    job = small_job()
    model = job.net.model()
    plain, last = (evaluate(job, model, channels_last=way) for way in (False, True))
    assert last.loss == pytest.approx(plain.loss, rel=1e-12)
    with workers(job, "channels_last") as executor:
        (score,) = executor.evaluate([model])
    assert score.loss == last.loss


def test_as_they_are_one_by_one_is_the_reference_bit_for_bit(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "LAYOUT_MARGIN", 1e9)
    job = small_job()
    found = ended(job, "plain")
    assert not found.events
    assert not differences(found.server, reference(job))


def test_networks_without_kernels_and_short_runs_are_not_tried() -> None:
    tiny = networks.build("mlp", (1, 8, 8), 10, 0)
    assert not has_kernels(tiny.model()["params"])
    for job in (small_job(net=tiny), small_job()):
        found = ended(job, "auto", stack=0)
        assert not found.events
        assert not differences(found.server, reference(job))


@pytest.fixture
def any_run(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Short runs are tried as well, quickly; stacks are not."""
    monkeypatch.setattr(trial, "_worth", lambda steps: 0)
    monkeypatch.setattr(trial, "STEP_LIMIT", 0.0)
    monkeypatch.setattr(trial, "TIMED_SECONDS", 0.0)
    return monkeypatch


@pytest.mark.parametrize(("margin", "way"), [(1e9, Way.CHANNELS_LAST), (0.0, Way.ONE_BY_ONE)])
@pytest.mark.parametrize("stack", [0, 1])
def test_timing_chooses_once_for_few_clients_and_slow_steps_too(
    any_run: pytest.MonkeyPatch, margin: float, way: Way, stack: int
) -> None:
    any_run.setattr(trial, "LAYOUT_MARGIN", margin)
    job = small_job()
    found = ended(job, "auto", stack)
    (event,) = found.events
    assert event.startswith(f"clients of phase 'train': {way}, timed: plain ")
    assert "channels last" in event
    assert bool(differences(found.server, reference(job))) == (way is Way.CHANNELS_LAST)


def test_scores_follow_the_choice(any_run: pytest.MonkeyPatch) -> None:
    job = small_job()
    for margin, way in ((1e9, True), (0.0, False)):
        any_run.setattr(trial, "LAYOUT_MARGIN", margin)
        with workers(job, "auto") as executor:
            found = run(job, rounds=1, cohort=6, executor=executor, observers=[Evaluate()])
            (score,) = executor.evaluate([found.server["model"]])
        assert score.loss == evaluate(job, found.server["model"], channels_last=way).loss


def test_stacks_are_tried_against_the_faster_layout(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "LAYOUT_MARGIN", 1e9)
    any_run.setattr(trial, "LEAST", 1)
    any_run.setattr(trial, "STEP_LIMIT", 1e9)
    any_run.setattr(trial, "SHORT", 0.0)
    for margin, way in ((0.0, Way.CHANNELS_LAST), (1e9, Way.STACKED)):
        any_run.setattr(trial, "MARGIN", margin)
        (event,) = ended(small_job(), "auto", stack=0).events
        assert event.startswith(f"clients of phase 'train': {way}, timed: plain ")
        assert f"; timed on 3: {Way.CHANNELS_LAST} " in event


def test_a_network_that_needs_its_features_in_order_keeps_them_so(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "LAYOUT_MARGIN", 1e9)
    job = small_job(net=network(Viewed()))
    found = ended(job, "auto")
    (event,) = found.events
    assert event.startswith(f"clients of phase 'train': one by one, since {Way.CHANNELS_LAST} fails: ")
    assert not differences(found.server, reference(job))


def test_an_experiment_says_how_and_its_past_says_what_was_chosen(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "LAYOUT_MARGIN", 1e9)
    job = small_job()
    expected, before = reference(job), Choices()
    before.keep("workers, phase train", Answer(Way.ONE_BY_ONE, "timed"))
    for given, choices, exact in (
        ({}, Choices(), False),
        ({}, before, True),
        ({"workers.layout": "plain"}, Choices(), True),
        ({"workers.layout": "channels_last", "workers.stack": 1}, Choices(), False),
        ({"exact": True}, Choices(), True),
    ):
        resolved = resolve("fedavg", {"executor": "workers", "workers.processes": 2, **given})
        executor = executor_for(resolved, job, SimulatedHomes(job), 6, Surroundings(), choices)
        try:
            found = run(job, cohort=6, executor=executor)
        finally:
            executor.close()
        assert bool(differences(found.server, expected)) != exact


@pytest.mark.parametrize("executor", ["sequential", "cuda"])
def test_layouts_of_the_workers_are_refused_elsewhere(executor: str) -> None:
    resolved = resolve("fedavg", {"executor": executor, "workers.layout": "channels_last"})
    with pytest.raises(ConfigError, match=r"workers\.layout = channels_last needs executor 'workers', not"):
        refuse_unused(resolved, cohort=6)
