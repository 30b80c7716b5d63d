"""What fewfed leaves as it found it: the process's environment and torch's global flags."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from probes import Interrupted, fail

import fewfed
from fewfed import Training
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda import options as cuda
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.flags import flags_for
from fewfed.engine.executors.ray import options as ray
from fewfed.engine.executors.registry import plugins
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import options as workers
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.job import Job
from fewfed.errors import RunError
from run_support import small
from support import digits, digits_federation, job_of, run


def surroundings() -> dict[str, Any]:
    """Everything global that a library could change behind its user's back."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    parts = (matmul, cudnn.conv, cudnn.rnn, torch.backends.mkldnn.matmul)
    return {
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ],
        "cudnn": [cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, cudnn.allow_tf32],
        "products": [
            matmul.allow_tf32,
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
            torch.get_float32_matmul_precision(),
            *(part.fp32_precision for part in parts),
        ],
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled()],
        "smallest numbers are kept": float(torch.tensor([1e-310], dtype=torch.float64) * 1) > 0,
        "generator": zlib.crc32(torch.random.get_rng_state().numpy().tobytes()),
    }


IMPORT_EVERYTHING = f"""
from __future__ import annotations
import importlib, json, os, pkgutil, sys, zlib
import torch

{inspect.getsource(surroundings)}
assert not any(name.partition(".")[0] == "fewfed" for name in sys.modules)
before = surroundings()
import fewfed
found = {{"alone": [name for name, value in surroundings().items() if value != before[name]], "modules": {{}}}}
for module in pkgutil.walk_packages(fewfed.__path__, "fewfed."):
    if module.name != "fewfed.__main__":  # The program itself.
        importlib.import_module(module.name)
        now = surroundings()
        found["modules"][module.name] = [name for name, value in now.items() if value != before[name]]
print(json.dumps(found))
"""


def test_importing_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["alone"] == []
    assert len(found["modules"]) > 100
    assert {name: changed for name, changed in found["modules"].items() if changed} == {}


def device(**options: Any) -> Callable[[Job], Executor]:
    return lambda job: Device(job, options=cuda.Options(device="cpu", stack=4, **options))


EXECUTORS: dict[str, Callable[[Job], Executor]] = {
    "sequential": Sequential,
    "workers": lambda job: Workers(job, options=workers.Options(2)),
    "workers, exact": lambda job: Workers(job, options=workers.EXACT),
    "cuda": device(compiled="none", layout="plain"),
    "cuda, graphs": device(mode="graphs", deterministic=True),
    "cuda, graphs, bf16": device(mode="graphs", precision="bf16"),
    "cuda, stacked, tf32": device(mode="stacked", precision="tf32"),
    "cuda, eager": device(mode="eager"),
}


def test_no_executor_is_left_out() -> None:
    """Actors of a cluster make their job from a run folder: `test_a_run_on_a_cluster_leaves_everything_as_it_was`."""
    assert {*(name.partition(",")[0] for name in EXECUTORS), "ray"} == set(plugins())


@pytest.fixture(params=["as torch has them", "other"])
def before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Flags as they are at first, or all otherwise: what is put back must be what was there, not what is usual."""
    import torch._dynamo.package  # As scikit-learn does for the digits, it sets variables of its own when first loaded.

    digits()
    torch.set_num_threads(2)  # What needs one thread has something to change.
    if request.param == "other":
        torch.set_float32_matmul_precision("medium")
        for name in ("benchmark", "deterministic", "allow_tf32"):
            monkeypatch.setattr(torch.backends.cudnn, name, not getattr(torch.backends.cudnn, name))
        monkeypatch.setenv("FEWFED_TEST", "1")
    yield surroundings()
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_executor_leaves_everything_as_it_was(name: str, before: dict[str, Any]) -> None:
    job = job_of("fedavg", digits_federation(4, 12), training={"epochs": 1, "optimizer": "sgd"})
    executor = EXECUTORS[name](job)
    try:
        server = run(job, rounds=1, executor=executor).server
        executor.evaluate([server["model"]])
    finally:
        executor.close()
    assert surroundings() == before


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_run_that_fails_leaves_everything_as_it_was(name: str, before: dict[str, Any]) -> None:
    method = Interrupted(happens=fail(*range(4)))
    job = job_of(method, digits_federation(4, 12), training={"epochs": 1, "optimizer": "sgd"})
    executor = EXECUTORS[name](job)
    try:
        with pytest.raises(RunError, match="all 3 members failed"):
            run(job, rounds=1, executor=executor)
    finally:
        executor.close()
    assert surroundings() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_on_a_cluster_leaves_everything_as_it_was(fails: bool, before: dict[str, Any], tmp_path: Path) -> None:
    training = Training(epochs=1, optimizer="sgd", lr=1e30 if fails else 0.1)
    experiment, executor = small(clients=4, cohort=3.0, rounds=1), ray.Options(actors=1)
    with pytest.raises(RunError, match="failed") if fails else nullcontext():
        fewfed.run("fedavg", experiment, training, executor=executor, out=tmp_path / "run")
    assert surroundings() == before


@pytest.mark.parametrize("deterministic", [True, False])
def test_flags_of_a_gpu_are_set_and_put_back(deterministic: bool, before: dict[str, Any]) -> None:
    """They can be set without a GPU, so that it is seen here that they come back."""
    with flags_for(cuda.Options(deterministic=deterministic)):
        assert torch.backends.cudnn.deterministic == deterministic
        assert torch.backends.cudnn.benchmark != deterministic
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == deterministic
    assert surroundings() == before
