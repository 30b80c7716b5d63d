"""Memory does not grow with rounds: fewer of them than `tools/memory_of_federation.py` runs by default."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def tool() -> Any:
    path = Path(__file__).resolve().parents[3] / "tools" / "memory_of_federation.py"
    spec = importlib.util.spec_from_file_location("memory_of_federation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_processes_are_as_large_after_a_hundred_rounds_as_after_forty(tool: Any, tmp_path: Path) -> None:
    found = tool.readings(tmp_path, "flea", rounds=101, every=20, sites=2)[1:]
    assert [reading.rounds for reading in found] == [40, 60, 80, 100]
    for who in found[0].megabytes:
        assert tool.growth(found, who) < 0.05, [reading.megabytes[who] for reading in found]


def test_growth_is_that_of_the_largest_reading_over_the_first(tool: Any) -> None:
    found = [tool.Reading(number, {"site": size}) for number, size in ((50, 200.0), (100, 230.0), (150, 220.0))]
    assert tool.growth(found, "site") == pytest.approx(0.15)
