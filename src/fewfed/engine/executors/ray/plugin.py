"""The executor `ray` for the registry."""

from __future__ import annotations

import importlib.util

from fewfed.engine.choices import Choices
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.executors.ray.executor import RayExecutor
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job


def _make(job: Job, homes: SimulatedHomes, options: Options, _choices: Choices) -> RayExecutor:
    return RayExecutor(job, homes, options)


def _unavailable() -> str:
    missing = importlib.util.find_spec("ray") is None
    return "needs Ray, which is not installed: pip install 'fewfed[ray]', or use --executor workers" if missing else ""


PLUGIN = Plugin("ray", "processes on a Ray cluster of one machine or many", _make, Options, _unavailable)
