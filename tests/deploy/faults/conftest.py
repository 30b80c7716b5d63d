"""A federation of three real sites that the tests of this folder disturb."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # The helpers of all tests of federations.

from disturbed import Disturbed


@pytest.fixture(scope="session")
def three_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    made = Disturbed(tmp_path_factory.mktemp("trio"))
    try:
        made.start_sites()
        yield made
    finally:
        made.close()


@pytest.fixture
def trio(three_sites: Disturbed) -> Iterator[Disturbed]:
    """Three sites that stay up from test to test; every test has a coordinator and a run of its own."""
    three_sites.mend()
    yield three_sites
    three_sites.end_coordinators()
