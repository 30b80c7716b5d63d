"""The executor `cuda` for the registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fewfed.engine.choices import Choices
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job

_BY_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"


def has_gpu() -> bool:
    """Whether there is a CUDA device. The process that asks can still fork children that use it."""
    with _asking_the_driver():
        return torch.cuda.is_available()


@contextmanager
def _asking_the_driver() -> Iterator[None]:
    """torch asks the driver's management library instead of starting CUDA in this process."""
    before = os.environ.get(_BY_DRIVER)
    os.environ[_BY_DRIVER] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BY_DRIVER]
        else:
            os.environ[_BY_DRIVER] = before


def _make(job: Job, homes: SimulatedHomes, options: Options, choices: Choices) -> Device:
    return Device(job, homes, options, choices)


def _unavailable() -> str:
    return "" if has_gpu() else "found no CUDA device: use --executor workers"


PLUGIN = Plugin("cuda", "recorded steps on one GPU", _make, Options, _unavailable)
