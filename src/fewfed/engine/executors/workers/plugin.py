"""The executor `workers` for the registry."""

from __future__ import annotations

import os

from fewfed.engine.choices import Choices
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job


def _make(job: Job, homes: SimulatedHomes, options: Options, choices: Choices) -> Workers:
    return Workers(job, homes, options, choices)


def _unavailable() -> str:
    return "" if hasattr(os, "fork") else "needs os.fork, which this system lacks: use --executor sequential"


PLUGIN = Plugin("workers", "one single-threaded process a core", _make, Options, _unavailable)
