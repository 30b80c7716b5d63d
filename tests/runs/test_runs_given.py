"""The doors for programs, with wrong types as a user may hand them over: a sentence each, and no traceback of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fewfed
from fewfed import Dataset, Examples, Experiment, FewfedError, Training, compare, resume, run, show
from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError
from fewfed.methods.fedprox import FedProx
from fewfed.runs.execute import execute
from run_support import SHORT, small

TINY = {"network": "mlp", "clients": 6, "cohort": 3, "rounds": 1, "executor": "sequential"}

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a class": (lambda: run(FedProx), "expected a name, since a run must find its method again: 'fedprox'"),  # type: ignore[arg-type]
    "a method": (lambda: run(FedProx(mu=0.1)), "values= are its fields"),  # type: ignore[arg-type]
    "no method": (lambda: run(None), "expected the name of a method"),  # type: ignore[arg-type]
    "one method for several": (lambda: compare("fedavg"), "expected a list of names"),
    "no methods": (lambda: compare([]), "which methods?"),
    "a set of methods": (lambda: compare({"fedavg"}), "expected a list of names"),  # type: ignore[arg-type]
    "a typo in a method": (lambda: compare(["fedavg", "flae"]), "did you mean 'flea'?"),
    "a field in a dict": (lambda: run("fedavg", {"round": 3}), "'round': did you mean 'rounds'?"),
    "a field of Experiment": (lambda: Experiment(round=3), "'round': did you mean 'rounds'?"),  # type: ignore[call-arg]
    "a field of Training": (lambda: Training(epoch=3), "'epoch': did you mean 'epochs'?"),  # type: ignore[call-arg]
    "a value in a dict": (lambda: run("fedavg", {"rounds": "many"}), "rounds = 'many': expected int"),
    "a value of Experiment": (lambda: run("fedavg", Experiment(rounds="many")), "rounds = 'many': expected int"),  # type: ignore[arg-type]
    "training in the place of the experiment": (lambda: run("fedavg", Training()), "experiment = Training("),  # type: ignore[arg-type]
    "a number for training": (lambda: run("fedavg", TINY, 5), "training = 5: expected named values"),  # type: ignore[arg-type]
    "a field of training in a dict": (lambda: run("fedavg", TINY, {"epoch": 1}), "did you mean 'epochs'?"),
    "keys that are no names": (lambda: run("fedavg", {1: 2}), "experiment has a field 1"),  # type: ignore[dict-item]
    "values that are none": (lambda: run("fedprox", TINY, values=[1]), "values = [1]"),  # type: ignore[arg-type]
    "an unknown value": (lambda: run("fedprox", TINY, values={"muu": 1}), "did you mean 'mu'?"),
    "an unknown value of some": (lambda: compare(["fedavg", "fedprox"], TINY, values={"muu": 1}), "did you mean 'mu'?"),
    "an unknown owner": (lambda: compare(["fedprox"], TINY, values={"fedpros.mu": 1}), "did you mean 'fedprox'?"),
    "options": (lambda: run("fedavg", TINY, options={"normalize": False}), "did you mean 'normalise'?"),
    "seeds in words": (lambda: compare(["fedavg"], TINY, seeds="three"), "seeds = 'three'"),  # type: ignore[arg-type]
    "a list of seeds": (lambda: compare(["fedavg"], TINY, seeds=[0, 1]), "seeds = [0, 1]"),  # type: ignore[arg-type]
    "no seeds": (lambda: compare(["fedavg"], TINY, seeds=0), "seeds = 0: expected a whole number from 1 on"),
    "jobs": (lambda: compare(["fedavg"], TINY, jobs=-1), "jobs = -1: expected a whole number from 0 on"),
    "a seed": (lambda: run("fedavg", {"seed": 1.5}), "seed = 1.5: expected int"),
    "arrays for data": (lambda: run("fedavg", TINY, data=(np.ones(3), np.ones(3))), "data is a tuple"),  # type: ignore[arg-type]
    "data in the experiment": (
        lambda: run("fedavg", Experiment(data=Dataset("x", Examples([[1.0]], [0]), Examples([[1.0]], [0]), 1))),  # type: ignore[arg-type]
        "data is a Dataset: give it beside the experiment, as data=",
    ),
    "a network in the experiment": (
        lambda: run("fedavg", Experiment(network=nn.Linear(2, 2))),  # type: ignore[arg-type]
        "network is a Linear: give it beside the experiment",
    ),
    "a class for a network": (lambda: run("fedavg", TINY, network=nn.Linear), "network=Linear(...)"),  # type: ignore[arg-type]
    "a function for a network": (lambda: run("fedavg", TINY, network=print), "expected a torch.nn.Module"),  # type: ignore[arg-type]
    "a folder": (lambda: run("fedavg", TINY, out=5), "out = 5: expected the path of a folder"),  # type: ignore[arg-type]
    "an executor": (lambda: run("fedavg", TINY, executor=5), "executor = 5"),
    "a typo in an executor": (lambda: run("fedavg", TINY, executor="worker"), "did you mean 'workers'?"),
    "one observer": (lambda: run("fedavg", TINY, observers=print), "observers = <built-in"),  # type: ignore[arg-type]
    "odd observers": (lambda: run("fedavg", TINY, observers=[print]), "after_round(view)"),  # type: ignore[list-item]
    "progress": (lambda: run("fedavg", TINY, progress="yes"), "progress = 'yes'"),  # type: ignore[arg-type]
    "a folder to resume": (lambda: resume(None), "folder = None: expected the path"),  # type: ignore[arg-type]
    "a missing folder": (lambda: resume("nowhere"), "'nowhere' is not a run folder"),
    "options to resume with": (lambda: resume("x", executor=5), "executor = 5: expected the name of another one"),  # type: ignore[arg-type]
    "a folder to show": (lambda: show(5), "folder = 5"),  # type: ignore[arg-type]
    "a missing folder to show": (lambda: show("nowhere"), "cannot look into 'nowhere'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_type_is_told_in_a_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    act, says = WRONG[case]
    with pytest.raises(FewfedError) as error:
        act()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_mappings_paths_and_numbers_of_numpy_are_understood(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", x=draw.normal(size=(60, 4)), y=y)
    given: dict[str, Any] = {"split": "iid", "clients": np.int32(4), "cohort": np.float32(2), "rounds": "2", "seed": 1}
    found = run(
        "fedprox", {**given, "data": tmp_path / "mine.npz"}, {"epochs": np.int64(1)},
        values={"mu": np.float32(0.5)}, options={"normalise": "none"}, out=str(tmp_path / "one"),
    )  # fmt: skip
    whole = Experiment(split="iid", clients=4, cohort=2.0, rounds=2, seed=1)
    again = run(
        "fedprox", whole, Training(epochs=1),
        values={"mu": 0.5}, options=DataOptions(normalise="none"), data=tmp_path / "mine.npz", out=tmp_path / "two",
    )  # fmt: skip
    assert (found.accuracy, found.bytes, found.seed) == (again.accuracy, again.bytes, 1)
    by_name = run("fedavg", small(rounds=1), SHORT, data="digits", network="digits-cnn", out=tmp_path / "three")
    assert by_name.data == "digits"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**40, -(2**63), 2.5, float("nan"), float("inf"), b"bytes", print, object, FedProx, FedProx()]),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["rounds", "mu", "lr", "x", "seed", "data", ""]), st.integers(-2, 2), max_size=2),
    st.sampled_from(
        [Path("x"), np.ones(2), np.float32(1), torch.ones(2), nn.Linear(1, 1), Experiment(), Training(), ...]
    ),
)
BOTH = ("experiment", "training", "values", "options", "executor", "data", "network", "out", "progress")


class Stopped(Exception):
    """Everything was accepted: that is as far as junk needs to go."""


def tried(door: Callable[..., object], given: dict[str, Any]) -> None:
    with pytest.raises((FewfedError, Stopped)):
        door(**given)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Stopped

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fewfed.runs.api.execute", stop)
    monkeypatch.setattr("fewfed.runs.comparison.run_cells", stop)
    assert execute is not stop


@pytest.mark.usefixtures("stopped")
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from((*BOTH, "observers")), JUNK, min_size=1, max_size=2),
    st.one_of(st.just("fedprox"), JUNK),
)
def test_junk_for_run_is_an_error_of_ours_or_accepted(given: dict[str, Any], method: Any) -> None:
    tried(run, {"experiment": TINY, "method": method, **given})


@pytest.mark.usefixtures("stopped")
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from((*BOTH, "seeds", "jobs")), JUNK, min_size=1, max_size=2),
    st.one_of(st.just(["fedprox"]), JUNK),
)
def test_junk_for_compare_is_an_error_of_ours_or_accepted(given: dict[str, Any], methods: Any) -> None:
    tried(compare, {"experiment": TINY, "methods": methods, **given})


def test_what_the_package_exports_is_listed() -> None:
    assert all(hasattr(fewfed, name) for name in fewfed.__all__)
    assert {"run", "resume", "compare", "show"} <= set(fewfed.__all__)
    with pytest.raises(ConfigError):
        Training(momentom=1)  # type: ignore[call-arg]
