"""Which executor runs an experiment."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

import torch

from fewfed.engine.choices import Answer, Choices
from fewfed.engine.device.executor import Device
from fewfed.engine.device.options import DeviceOptions
from fewfed.engine.job import Executor, Job
from fewfed.engine.sequential import Sequential
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
_EXACT: dict[str, tuple[object, ...]] = {
    "cpu_stack": (0, 1),
    "cpu_layout": ("auto", "plain"),
    "device_plan": ("auto", "graphs"),
    "compiled": ("auto", "none"),
}
"""What settings may be where nothing may change how numbers round."""
_QUESTION = "executor"
EXECUTOR_FIELDS = ("executor", "exact", *_SETTINGS["workers"], *_SETTINGS["cuda"])
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Experiment)}


@dataclass(frozen=True)
class Surroundings:
    """What else goes on around a run."""

    alone: bool = True
    """Whether it has the machine to itself; else a run without a GPU keeps to its own process."""
    compared: bool = False
    """Whether it is one of several that must be computed in the same way."""


def executor_for(
    experiment: Experiment, job: Job, cohort: int, around: Surroundings, choices: Choices | None = None
) -> Executor:
    """The executor an experiment names; `auto`: the GPU if there is one, else a process a core, else one by one.

    `choices`: what was decided before, in this run or in runs like it.
    """
    choices = choices or Choices()
    name = _settled(experiment, cohort, around, choices)
    exact = experiment.exact or around.compared
    if name == "cuda":
        return Device(job, _device_options(experiment), choices)
    if name == "workers":
        if exact:
            return Workers(job, experiment.processes, 1, "plain", choices)
        return Workers(job, experiment.processes, experiment.cpu_stack, experiment.cpu_layout, choices)
    return Sequential(job)


def _settled(experiment: Experiment, cohort: int, around: Surroundings, choices: Choices) -> str:
    """Which executor: the one this run had before, if this machine has it too.

    Runs that are compared on a CPU are all computed as `sequential` does, however many share the machine.
    """
    name: str = experiment.executor
    if name == "auto":
        name = _best(experiment, cohort)
    if name == "workers" and not around.alone:
        name = "sequential"
    before = choices.known().get(_QUESTION)
    if before is not None and (before.value == "cuda") == (name == "cuda"):
        return before.value
    compared = around.compared and name == "workers"
    choices.keep(_QUESTION, Answer("sequential" if compared else name, "the executor of the first round"))
    return name


def _device_options(experiment: Experiment) -> DeviceOptions:
    exact = experiment.exact
    return DeviceOptions(
        plan="graphs" if exact else experiment.device_plan,
        precision=experiment.precision,
        streams=experiment.streams,
        width=experiment.stack,
        compiled="none" if exact else experiment.compiled,
        layout="plain" if exact and experiment.precision == "float32" else experiment.device_layout,
        kernels=experiment.kernels,
    )


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
    for name, allowed in _EXACT.items():
        if experiment.exact and getattr(experiment, name) not in allowed:
            raise ConfigError(f"{name} = {getattr(experiment, name)} changes how numbers round: leave it or exact out")
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
