"""One reference run of every method, which the tests of that method compare with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from conformance_cases import Guarded, Played, every_spec, job_for, play


@dataclass(frozen=True)
class Reference:
    """A method as a user writes it, its run in one process, and what was noticed on the way."""

    spec: str
    played: Played
    guard: Guarded


@pytest.fixture(scope="session", params=every_spec())
def reference(request: pytest.FixtureRequest) -> Reference:
    spec: str = request.param
    job = job_for(spec)
    guard = Guarded(job)
    return Reference(spec, play(job, guard), guard)
