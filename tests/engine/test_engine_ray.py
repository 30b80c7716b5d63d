"""The executor `ray` computes what `workers` does, bit for bit, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray_runs import RAY, assert_same_by_workers, events, running_cluster
from torch import nn

import fewfed
from fewfed import Training
from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.ray import executor
from fewfed.engine.executors.ray.cluster import Cluster
from fewfed.engine.executors.ray.executor import RayExecutor
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.executors.registry import plugin
from fewfed.engine.homes import SimulatedHomes
from fewfed.errors import ConfigError
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import prepare
from run_support import SHORT, assert_same_end, small


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """One for all tests of this file: actors of every run are new, Ray's own processes need not be."""
    with running_cluster() as started:
        yield started


POLICY = """
roles = ["model", "features", "labels"]
most_releases_of_row = 2
[site.2]
never = [3]
[site.4]
revoked_from = 2
"""

TWICE = Training(epochs=2)
CASES: dict[str, tuple[str, Training, dict[str, Any]]] = {
    "fedavg, all packets recorded": ("fedavg", SHORT, {"record": "packets", "record_rounds": "all"}),
    "flea under a policy": ("flea", SHORT, {"policy": "policy.toml", "record": "packets", "rounds": 3}),
    "scaffold": ("scaffold", SHORT, {"rounds": 3}),
    "sem(fedavg)": ("sem(fedavg)", TWICE, {}),
    "flair": ("flair", TWICE, {}),
    "ccvr(fedavg)": ("ccvr(fedavg)", SHORT, {}),
    "fedbn with validation rows": ("fedbn", SHORT, {"network": "small-cnn", "validation": 0.2}),
    "local": ("local", SHORT, {"evaluate_clients": 5}),
    "flea among attackers, each packet by itself": (
        "flea",
        SHORT,
        {"attack": "label-flip", "attackers": "1,4", "robust": "trimmed", "row_filter": 2.0, "cohort": 8},
    ),
    "dp(fedavg) with a budget, an optimiser that goes on": (
        "dp(fedavg)",
        Training(epochs=1, optimizer="adam", lr=0.001, reset="never"),
        {"epsilon": 30.0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_on_a_cluster_has_the_bits_of_workers(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, training, said = CASES[case]
    monkeypatch.chdir(tmp_path)  # The policy is named from where the program is.
    (tmp_path / "policy.toml").write_text(POLICY)
    assert_same_by_workers(tmp_path, method, training, {}, **said)
    assert not [kind for kind in events(tmp_path / "ray") if kind.startswith("actor")]


def clinics() -> Dataset:
    """Sixteen columns of five sites, as a user's own object; pixels lie last, as readers of pictures leave them."""
    draw = np.random.default_rng(3)
    where, tested = np.repeat(np.arange(5), (4, 9, 17, 30, 20)), np.arange(40) % 5

    def pictures(ids: np.ndarray) -> torch.Tensor:
        x = torch.tensor(draw.normal(ids[:, None, None, None], 2.0, (len(ids), 8, 8, 3)), dtype=torch.float32)
        return x.permute(0, 3, 1, 2)

    return Dataset(
        "clinics",
        Examples(pictures(where), torch.arange(len(where)) % 3),
        Examples(pictures(tested), torch.arange(len(tested)) % 3),
        3,
        ("a", "b", "c"),
        {"site": where.astype(np.uint16)},
        {"site": ("north", "east", "south", "west", "sea")},
        test_groups={"site": tested},
    )


def test_own_data_with_sites_and_their_own_scaling(tmp_path: Path) -> None:
    own = {"data": clinics(), "options": DataOptions(normalise="site")}
    said = {"split": "site", "clients": 0, "cohort": 5.0, "network": "small-cnn"}
    assert_same_by_workers(tmp_path, "fedavg", SHORT, own, **said)


def test_many_actors_divide_shards_and_send_packets_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with five actors and more; two are enough to look at what they send."""
    monkeypatch.setattr(executor, "_ACTORS_FOR_SHARDS", 1)
    said = {"clients": 40, "cohort": 30.0, "record": "packets"}
    assert_same_by_workers(tmp_path, "scaffold", SHORT, {}, **said)


UNKNOWN = '''
"""Uploads whose shapes nobody knows before a client has sent some, and clients that fail or send something odd."""

from dataclasses import dataclass

import torch

from fewfed.method import Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Combine, Phase, Role, Upload
from fewfed.tree import Tree


@dataclass(frozen=True)
class Unknown(FedAvg):
    name = "unknown"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        more = {"sketch": Upload(Combine.KEEP, Role.STATISTICS), "total": Upload(Combine.SUM, Role.STATISTICS)}
        (train,) = super().phases(clock)
        return (Phase("train", self, clock.epochs, {**train.uploads, **more}),)

    def absorb(self, server: Tree, combined) -> Tree:
        return {"model": combined.values["model"]}

    def end(self, work: Tree, ctx: Context) -> Report:
        if not ctx.data.x.any():
            raise ValueError("zeros")
        if ctx.client == 0:
            raise RuntimeError("the first one fails")
        report = super().end(work, ctx)
        sketch = torch.full((5 if ctx.client == 7 else 4,), float(ctx.client))
        return report._replace(upload={**report.upload, "sketch": sketch, "total": sketch.sum()})
'''


def test_shapes_that_are_learned_and_clients_that_fail(tmp_path: Path) -> None:
    (tmp_path / "unknown.py").write_text(UNKNOWN)
    assert_same_by_workers(tmp_path, str(tmp_path / "unknown.py"), SHORT, {}, cohort=12.0, record="packets")
    failed = fewfed.runs.folder.RunFolder(tmp_path / "ray").metrics()[0]["failed"]
    assert [(each["client"], each["cause"]) for each in failed] == [(0, "client"), (7, "packet")]


def test_a_run_goes_on_with_another_executor_and_back(tmp_path: Path) -> None:
    class Stop:
        def __init__(self, after: int) -> None:
            self.after = after

        def after_round(self, view: Any) -> None:
            if view.clock.round == self.after:
                raise KeyboardInterrupt

    said = small(clients=12, cohort=6.0, rounds=4, checkpoint_seconds=0.0)
    fewfed.run("scaffold", said, SHORT, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fewfed.run("scaffold", said, SHORT, executor=RAY, out=tmp_path / "parts", observers=[Stop(1)])
    with pytest.raises(KeyboardInterrupt):
        fewfed.resume(tmp_path / "parts", executor="sequential", observers=[Stop(2)])
    fewfed.resume(tmp_path / "parts", executor="ray")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")


def test_a_network_that_is_an_object_is_refused_in_a_sentence(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ConfigError, match=r"executor 'ray' cannot compute this run: a network .* name it as a file"):
        fewfed.run("fedavg", small(), SHORT, executor=RAY, network=network, out=tmp_path / "run")


def test_a_job_without_a_run_folder_is_refused() -> None:
    job = prepare(resolve("fedavg", {"network": "mlp"})).job
    with pytest.raises(ConfigError, match="expected a run folder"):
        RayExecutor(job, SimulatedHomes(job), RAY)


def test_ray_is_not_imported_where_it_is_not_used() -> None:
    code = "import sys, fewfed, fewfed.runs.experiment as e; e.executor_options(); assert 'ray' not in sys.modules"
    assert os.spawnlp(os.P_WAIT, os.sys.executable, os.sys.executable, "-c", code) == 0  # type: ignore[attr-defined]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "fewfed[ray]" in plugin("ray").unavailable()
    with pytest.raises(ConfigError, match=r"executor 'ray' needs Ray.*pip install 'fewfed\[ray\]'"):
        fewfed.run("fedavg", small(executor="ray"), SHORT, out=tmp_path / "run")


def test_options_are_exact_and_bounded() -> None:
    assert Options(actors=3).exact() == Options(actors=3)
    with pytest.raises(ConfigError, match=r"actors = -1: expected"):
        resolve("fedavg", {"executor": "ray", "ray.actors": -1})
