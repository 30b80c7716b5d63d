"""A bad method is told what is wrong with it: the same in every executor, by name, and never with a traceback."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fewfed
from engine.bad_methods import BadMethod, kinds, mixture
from engine.processes import children
from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed
from fewfed.engine.rehearsal import rehearse
from fewfed.errors import FewfedError, RunError
from fewfed.method import Combined, Method
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.tasks.classification import Classification
from fewfed.tree import Tree
from run_support import SHORT, assert_same_end, rounds_written, small
from support import gap, job_of, run

EXECUTORS: dict[str, Callable[[Job], Executor]] = {
    "sequential": Sequential,
    "device, step by step": lambda job: Device(job, options=Options("eager", device="cpu")),
    "device, stacked": lambda job: Device(job, options=Options("stacked", stack=4, device="cpu")),
    "workers": lambda job: Workers(job, options=WorkerOptions(1, 1, "plain")),
    "stacked workers": lambda job: Workers(job, options=WorkerOptions(1, 2, "plain")),
}
CLIENTS = 3
ROUNDS = 2
HONEST = 3
KINDS = kinds()
AT_CLIENTS = [kind for kind in KINDS if kind.concerns_clients and kind.left_out is None]


@dataclass
class Verdict:
    """What came of a run."""

    error: str = ""
    """The type of the error that ended it, and its sentence."""
    left_out: list[Failed] = field(default_factory=list)
    """By round and client, where it went on."""
    server: Tree = field(default_factory=dict, compare=False)


def job(method: Method, clients: int) -> Job:
    rows = Examples(torch.linspace(-1, 1, 4 * 16).reshape(16, 4), torch.arange(16) % 2)

    def make(client: int) -> Examples:
        return rows.rows((torch.arange(4) + client) % 16)

    federation = GeneratedFederation(clients, make, rows, classes=2, most_rows=4)
    torch.manual_seed(0)
    net = Network("linear", {"head": nn.Linear(4, 2)})
    return job_of(method, federation, net=net, task=Classification(2), training={"epochs": 1, "batch": 4})


def verdict(executor: str, method: Method, clients: int = CLIENTS) -> Verdict:
    made = job(method, clients)
    try:
        with closing(EXECUTORS[executor](made)) as runs:
            found = run(made, rounds=ROUNDS, cohort=clients, observers=[Evaluate()], executor=runs)
    except FewfedError as error:
        return Verdict(f"{type(error).__name__}: {error}")
    failures = [sorted(view.record.failed, key=lambda failure: failure.client) for view in found.views]
    return Verdict("", [failure for failed in failures for failure in failed], tree.detach(found.server))


@cache
def expected(kind: str) -> Verdict:
    """What the reference executor says."""
    return verdict("sequential", next(each for each in KINDS if each.name == kind).method())


def assert_says(parts: Sequence[str], sentence: str) -> None:
    assert "\n" not in sentence
    assert len(sentence) < 1000
    for part in parts:
        assert part in sentence


def without_place(sentence: str) -> str:
    """In a mixture of methods, every function is called by the mixture's."""
    return re.sub(r" \((in \w+, )?bad_methods\.py, line \d+\)$", "", sentence)


def assert_agrees(executor: str, kind: BadMethod) -> None:
    found = verdict(executor, kind.method())
    assert found == expected(kind.name)
    assert gap(found.server, expected(kind.name).server) < 1e-6


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_wrong_is_said(kind: BadMethod) -> None:
    found = expected(kind.name)
    if kind.left_out is None:
        assert_says(kind.says, found.error)
    else:
        assert found.error == ""
        assert [failure.client for failure in found.left_out] == [*kind.left_out] * ROUNDS
        assert_says(kind.says, found.left_out[0].reason if found.left_out else "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_device_gives_the_same_verdict(kind: BadMethod) -> None:
    assert_agrees("device, stacked", kind)


# Not every kind needs processes of its own twice: what is wrong on the server's side is found before or after all
# turns, and what clients do one by one they do in one run, below.
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_workers_give_the_same_verdict(kind: BadMethod) -> None:
    assert_agrees("stacked workers" if kind.concerns_clients else "workers", kind)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_that_fail_in_all_these_ways_are_left_out_of_one_run(executor: str) -> None:
    found = verdict(executor, mixture(AT_CLIENTS, HONEST), HONEST + len(AT_CLIENTS))
    assert found.error == ""
    assert len(found.left_out) == ROUNDS * len(AT_CLIENTS)
    for failure in found.left_out:
        kind = AT_CLIENTS[failure.client - HONEST]
        assert without_place(expected(kind.name).error).endswith(f"client 0: {without_place(failure.reason)}"), (
            kind.name
        )


@dataclass(frozen=True)
class Fails(FedAvg):
    """FedAvg whose server fails in one round."""

    name = "fails"

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        raise ArithmeticError("the sum does not add up")


def test_the_cause_stays_with_the_error_and_its_line_is_named() -> None:
    with pytest.raises(
        RunError, match=r"absorb of phase 'train': ArithmeticError: .*\(in absorb, test_.*, line"
    ) as found:
        run(job(Fails(), CLIENTS), cohort=CLIENTS)
    assert isinstance(found.value.__cause__, ArithmeticError)
    line = inspect.getsourcelines(Fails.absorb)[1] + 1
    assert str(found.value).endswith(f"(in absorb, {Path(__file__).name}, line {line})")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_run_that_a_method_ends_leaves_no_process_behind(executor: str) -> None:
    before = children()
    assert "ArithmeticError" in verdict(executor, Fails()).error
    assert children() == before


@pytest.mark.parametrize("function", ["phases", "broadcast", "absorb", "predictor"])
def test_a_method_that_fails_costs_no_finished_round(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third round fails; once the method is mended, the run goes on as if nothing had been."""
    settings = small(rounds=4, checkpoint_seconds=0.0)
    fewfed.run("fedavg", settings, SHORT, out=tmp_path / "whole")
    honest, asked = getattr(FedAvg, function), []

    def fails(self: FedAvg, *given: Any) -> Any:
        asked.append(given)
        if rounds_written(tmp_path / "broken") == 2:
            raise ArithmeticError("not today")
        return honest(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, function, fails)
        with pytest.raises(RunError, match=f"method 'fedavg', {function}.*ArithmeticError: not today"):
            fewfed.run("fedavg", settings, SHORT, out=tmp_path / "broken")
    assert asked
    assert rounds_written(tmp_path / "broken") == 2
    fewfed.resume(tmp_path / "broken")
    assert_same_end(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_rehearsal_says_what_is_wrong_as_well(kind: BadMethod) -> None:
    """A site that finds out what it may receive plays rounds through by itself."""
    try:
        rehearse(job(kind.method(), CLIENTS), ROUNDS)
    except FewfedError as error:
        sentence = str(error)
        assert_says([], sentence)
        assert "method 'bad'" in sentence or "phase" in sentence or "expected" in sentence
