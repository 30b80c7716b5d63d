"""One reference run of every method, which the tests of that method compare with."""

from __future__ import annotations

import pytest
from conformance_cases import EARLY, numbers_apart

from fewfed.conformance.reference import Reference


@pytest.fixture(scope="session", params=numbers_apart())
def reference(request: pytest.FixtureRequest) -> Reference:
    spec: str = request.param
    return Reference.of(spec, EARLY.get(spec))
