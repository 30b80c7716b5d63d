"""What is loaded predicts what the run's evaluation scored, whatever the method."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewfed import Experiment, Training, load, run
from fewfed.data.sources import load as read
from fewfed.method import Method
from fewfed.methods.registry import choose, registered
from fewfed.runs.folder import RunFolder

OTHERS = ("fedproto:personal", "ccvr(fedharmo)", "fedfa(fedbn)", "sem(fedprox)")
FEW = Experiment(clients=4, cohort=2, rounds=1, volume=0.15, executor="sequential", evaluate_clients=0)


def each_method() -> list[Any]:
    """Those that say nothing of their own about the model that predicts are looked at in the thorough tests."""
    plain = {name for name, cls in registered().items() if cls.predictor is Method.predictor} - {"fedavg"}
    names = (*registered(), *OTHERS)
    return [pytest.param(name, marks=[pytest.mark.thorough] if name in plain else []) for name in names]


@pytest.mark.parametrize("method", each_method())
def test_the_accuracy_is_the_runs_last(method: str, tmp_path: Path) -> None:
    network = "mlp" if choose(method).method.no_batchnorm else "auto"
    few = dataclasses.replace(FEW, network=network)
    result = run(method, few, Training(epochs=2, batch=16), out=tmp_path / "run")
    data = read("digits")
    truth = np.array(data.class_names)[data.test.y]
    if "evaluated_clients" in RunFolder(tmp_path / "run").metrics()[-1]:
        models = [result.model(client=client) for client in range(4)]
    else:
        models = [load(tmp_path / "run")]
    accuracies = [int((model.predict(data.test.x) == truth).sum()) / len(truth) for model in models]
    assert sum(accuracies) / len(accuracies) == result.accuracy.last


def test_a_method_that_changes_test_inputs_does_so_here_too(tmp_path: Path) -> None:
    run("fedharmo", FEW, Training(epochs=1, batch=16), out=tmp_path / "run")
    model, rows = load(tmp_path / "run"), read("digits").test.x
    with_method = model.predict_proba(rows)
    model.presents = None
    assert np.abs(with_method - model.predict_proba(rows)).max() > 1e-3
