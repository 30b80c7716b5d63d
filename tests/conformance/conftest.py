"""One reference run of every method, which the tests of that method compare with."""

from __future__ import annotations

import pytest
from conformance_cases import Guarded, Reference, job_for, numbers_apart, play


@pytest.fixture(scope="session", params=numbers_apart())
def reference(request: pytest.FixtureRequest) -> Reference:
    spec: str = request.param
    job = job_for(spec)
    guard = Guarded(job)
    return Reference(spec, play(job, guard), guard)
