"""Which executor runs an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from fewfed.engine.device.executor import Device
from fewfed.engine.device.options import DeviceOptions
from fewfed.engine.job import Executor, Job
from fewfed.engine.sequential import Sequential
from fewfed.engine.trial import Choice
from fewfed.engine.workers import Workers
from fewfed.errors import ConfigError
from fewfed.experiment import Experiment
from fewfed.packing import GpuMemory, HostMemory, Packing

# Asked of the driver's management library, so that a process that only looked can still fork children that use the GPU.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def executor_for(experiment: Experiment, job: Job, cohort: int, alone: bool, past: Iterable[str] = ()) -> Executor:
    """The executor an experiment names; `auto`: the GPU if there is one, else a process a core, else one by one.

    Where other runs use the other cores (not `alone`), a run without a GPU keeps to its own process. `past`: events of
    the rounds a resumed run has behind it; what was chosen by timing there is kept.
    """
    name: str = experiment.executor
    if name == "auto":
        name = _best(experiment, cohort)
    if name == "workers" and not alone:
        name = "sequential"
    if name == "cuda":
        return Device(
            job,
            DeviceOptions(
                plan=experiment.device_plan,
                precision=experiment.precision,
                streams=experiment.streams,
                width=experiment.stack,
                compiled=experiment.compiled,
                layout=experiment.device_layout,
                kernels=experiment.kernels,
            ),
        )
    if name == "workers":
        chosen = [choice for event in past if (choice := Choice.told(event))]
        return Workers(job, experiment.processes, experiment.cpu_stack, chosen, experiment.cpu_layout)
    return Sequential(job)


def packing_for(jobs: int) -> Packing:
    """How many runs share this machine: `jobs`, or, for 0, what it has room for.

    On a GPU more are added while the rounds a second of all together grow: runs of small networks leave it idle at
    times, others take turns on it (seven of HARNet at once took as long as one after another).
    """
    if jobs:
        return Packing(jobs)
    if torch.cuda.is_available():
        return Packing(_cores(), (HostMemory(), GpuMemory()), growing=True)
    return Packing(_cores(), (HostMemory(),))


def refuse_unused(experiment: Experiment) -> None:
    """Settings of one executor given to another are a mistake, not a wish."""
    if experiment.processes and experiment.executor in ("sequential", "cuda"):
        raise ConfigError(f"processes = {experiment.processes} needs executor 'workers', not '{experiment.executor}'")
    if experiment.cpu_stack and experiment.executor in ("sequential", "cuda"):
        raise ConfigError(f"cpu_stack = {experiment.cpu_stack} needs executor 'workers', not '{experiment.executor}'")
    if experiment.cpu_layout != "auto" and experiment.executor in ("sequential", "cuda"):
        raise ConfigError(f"cpu_layout = {experiment.cpu_layout} needs executor 'workers', not '{experiment.executor}'")
    if experiment.precision != "float32" and experiment.executor in ("sequential", "workers"):
        raise ConfigError(f"precision = {experiment.precision} needs executor 'cuda', not '{experiment.executor}'")
    if experiment.compiled in ("parts", "steps") and experiment.executor in ("sequential", "workers"):
        raise ConfigError(f"compiled '{experiment.compiled}' needs executor 'cuda', not '{experiment.executor}'")
    if experiment.device_layout != "auto" and experiment.executor in ("sequential", "workers"):
        raise ConfigError(
            f"device_layout = {experiment.device_layout} needs executor 'cuda', not '{experiment.executor}'"
        )
    if experiment.executor == "cuda" and not torch.cuda.is_available():
        raise ConfigError("executor 'cuda' found no CUDA device: use --executor workers")


def _best(experiment: Experiment, cohort: int) -> str:
    asked = experiment.processes or experiment.cpu_stack or experiment.cpu_layout != "auto"
    if torch.cuda.is_available() and not asked:
        return "cuda"
    several = asked or (_cores() > 1 and cohort > 1)
    return "workers" if several and hasattr(os, "fork") else "sequential"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
