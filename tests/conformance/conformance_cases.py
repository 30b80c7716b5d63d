"""Every registered method as the suite examines it: with each preset, and wrappers also around another method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fewfed.conformance import reference
from fewfed.conformance.playing import COHORT as COHORT
from fewfed.conformance.reference import Subject
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.methods.registry import presets_of, registered, wrapped_field

EARLY: Mapping[str, Mapping[str, Any]] = {
    "ccvr": {"epochs": 4},
    "ccvr:gaussian": {"epochs": 4, "samples": 100},
    "fedgen": {"start": 1, "steps": 10, "batch": 32},
    "fedgen-latent": {"steps": 10, "batch": 32},
    "flair": {"init_epochs": 2},
    "grouped": {"k": 2},
    "potluck": {"k": 2},
}
"""Settings that let a method show all its phases in a run as short as these, and do often only a few times."""


def every_spec() -> list[str]:
    """Each method as a user would write it, with each of its presets; wrappers also around another method."""
    found = []
    for name, cls in registered().items():
        found += [name if preset == "paper" else f"{name}:{preset}" for preset in presets_of(name)]
        if wrapped_field(cls) and _fits(f"{name}(fedprox)"):
            found.append(f"{name}(fedprox)")
    return found


def every_method() -> list[str]:
    """The same without presets that only change numbers."""
    numbers = {f"{name}:{preset}" for name, cls in registered().items() for preset in cls.presets}
    return [spec for spec in every_spec() if spec not in numbers]


def numbers_apart() -> list[Any]:
    """Each spec as a parameter of a test; presets that only change numbers are for thorough runs."""
    methods = every_method()
    return [spec if spec in methods else pytest.param(spec, marks=pytest.mark.thorough) for spec in every_spec()]


def _fits(spec: str) -> bool:
    """Whether a wrapper accepts what it is put around; some only take methods that share features."""
    try:
        job = job_for(spec)
        job.method.check(job.setup)
    except ConfigError:
        return False
    return True


def job_for(spec: str) -> Job:
    """The method on digits, with its preset's training."""
    return reference.job_for(spec, EARLY.get(spec))


def subject(spec: str) -> Subject:
    return Subject.of(spec, EARLY.get(spec))
