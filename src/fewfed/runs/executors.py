"""Which executor runs an experiment, and how many runs share a machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fewfed.engine.choices import Answer, Choices
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.plugin import has_gpu
from fewfed.engine.executors.registry import plugin, plugins
from fewfed.engine.executors.workers.executor import cores
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.runs.experiment import Resolved
from fewfed.runs.packing import GpuMemory, HostMemory, Packing
from fewfed.settings import is_essential, make

_QUESTION = "executor"


@dataclass(frozen=True)
class Surroundings:
    """What else goes on around a run."""

    shares_machine: bool = False
    """Whether other runs use the other cores: a run without a GPU then keeps to its own process."""
    is_compared: bool = False
    """Whether it is one of several that must be computed in the same way."""


def executor_for(
    resolved: Resolved,
    job: Job,
    homes: SimulatedHomes,
    cohort: int,
    around: Surroundings = Surroundings(),  # noqa: B008
    choices: Choices | None = None,
) -> Executor:
    """The executor a configuration names; `auto`: the GPU if there is one, else a process a core, else one by one.

    `choices`: what was decided before, in this run or in runs like it.
    """
    choices = choices or Choices()
    name = _settled(resolved, cohort, around, choices)
    chosen = plugin(name)
    if why := chosen.unavailable():
        raise ConfigError(f"executor '{name}' {why}", key="executor")
    options = options_of(resolved, name)
    # Runs that are compared on a CPU are all computed as `sequential` does, however many share the machine.
    exact = resolved.experiment.exact or (around.is_compared and name != "cuda")
    return chosen.make(job, homes, options.exact() if exact else options, choices)


def options_of(resolved: Resolved, name: str) -> Any:
    """The options of an executor under a configuration."""
    return make(plugin(name).options, resolved.executors.get(name, {}), f"executor '{name}'")


def refuse_unused(resolved: Resolved, cohort: int) -> None:
    """Options of one executor given to another are a mistake, not a wish."""
    asked = resolved.experiment.executor
    if asked != "auto":
        plugin(asked)
    taken = _asked(resolved, cohort)
    for owner, given in resolved.executors.items():
        essential = {field.name for field in dataclasses.fields(plugin(owner).options) if is_essential(field)}
        for name, value in given.items():
            said = f"{owner}.{name} = {value} needs executor '{owner}'"
            if asked not in ("auto", owner):
                raise ConfigError(f"{said}, not '{asked}': choose that or leave the option out", key=f"{owner}.{name}")
            if owner != taken and name in essential:
                why = plugin(owner).unavailable() or f"this run would not use (it takes '{taken}')"
                raise ConfigError(f"{said}, which {why}; or leave the option out", key=f"{owner}.{name}")
    if why := plugin(taken).unavailable():
        raise ConfigError(f"executor '{taken}' {why}", key="executor")
    if resolved.experiment.exact:
        options_of(resolved, taken).exact()


def refuse_inexact(resolved: Resolved, cohort: int) -> None:
    """Runs that are compared on a CPU are exact: options that cannot be are refused before anything is run."""
    if (name := _asked(resolved, cohort)) != "cuda":
        options_of(resolved, name).exact()


def packing_for(jobs: int) -> Packing:
    """How many runs share this machine: `jobs`, or, for 0, what it has room for.

    On a GPU more are added while the rounds a second of all together grow: runs of small networks leave it idle at
    times, others take turns on it (seven of HARNet at once took as long as one after another).
    """
    if jobs:
        return Packing(jobs)
    if has_gpu():
        return Packing(cores(), (HostMemory(), GpuMemory()), growing=True)
    return Packing(cores(), (HostMemory(),))


def _settled(resolved: Resolved, cohort: int, around: Surroundings, choices: Choices) -> str:
    """Which executor: the one that is named; else the one this run had before, if this machine has it too."""
    asked = resolved.experiment.executor
    name = _asked(resolved, cohort)
    if name == "workers" and around.shares_machine:
        name = "sequential"
    before = choices.known().get(_QUESTION)
    if asked == "auto" and before is not None and _is_here(before.value):
        return before.value
    # Processes without choices by timing compute what one process does: a run that is resumed need not have them.
    recorded = "sequential" if around.is_compared and name == "workers" else name
    choices.keep(_QUESTION, Answer(recorded, "the executor of the first round"))
    return name


def _is_here(name: str) -> bool:
    return name in plugins() and not plugin(name).unavailable()


def _asked(resolved: Resolved, cohort: int) -> str:
    """The executor that is named, or for `auto` the best."""
    asked = resolved.experiment.executor
    return _best(resolved, cohort) if asked == "auto" else asked


def _best(resolved: Resolved, cohort: int) -> str:
    """The fastest executor of this machine; one whose options were set, if it can be used."""
    given = [name for name in ("workers", "cuda", *resolved.executors) if name in resolved.executors]
    for name in (*given, "cuda", "workers"):
        useful = name in given or name == "cuda" or (cores() > 1 and cohort > 1)
        if useful and not plugin(name).unavailable():
            return name
    return "sequential"
