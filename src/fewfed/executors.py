"""Which executor runs an experiment."""

from __future__ import annotations

import dataclasses
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

_SETTINGS = {
    "workers": ("processes", "cpu_stack", "cpu_layout"),
    "cuda": ("precision", "device_plan", "streams", "compiled", "device_layout", "kernels", "stack"),
}
"""Settings that only one executor looks at."""
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Experiment)}


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
    for owner, names in _SETTINGS.items():
        for name in names:
            value = getattr(experiment, name)
            if experiment.executor not in ("auto", owner) and value != _DEFAULTS[name]:
                raise ConfigError(f"{name} = {value} needs executor '{owner}', not '{experiment.executor}'")
    if experiment.executor == "auto" and experiment.precision != "float32" and not _wants_gpu(experiment):
        # The others only make a run faster; this one changes what is computed.
        raise ConfigError(f"precision = {experiment.precision} needs a GPU, which this run would not use: leave it out")
    if experiment.executor == "cuda" and not torch.cuda.is_available():
        raise ConfigError("executor 'cuda' found no CUDA device: use --executor workers")


def _best(experiment: Experiment, cohort: int) -> str:
    if _wants_gpu(experiment):
        return "cuda"
    several = _asks_for_workers(experiment) or (_cores() > 1 and cohort > 1)
    return "workers" if several and hasattr(os, "fork") else "sequential"


def _wants_gpu(experiment: Experiment) -> bool:
    return torch.cuda.is_available() and not _asks_for_workers(experiment)


def _asks_for_workers(experiment: Experiment) -> bool:
    return any(getattr(experiment, name) != _DEFAULTS[name] for name in _SETTINGS["workers"])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
