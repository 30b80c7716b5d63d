"""The targets of `make fuzz` work: each takes the good inputs it begins with, and some that are changed."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "tools" / "fuzz.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_tool", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_tool"] = module
    spec.loader.exec_module(module)
    return module


FUZZ = loaded()


@pytest.mark.parametrize("name", FUZZ.TARGETS)
def test_a_target_takes_good_inputs_and_changed_ones(name: str, tmp_path: Path) -> None:
    case, good = FUZZ.TARGETS[name](tmp_path)
    assert good
    draw = random.Random(0)
    for content in (*good, *(FUZZ.mutated(draw.choice(good), draw) for _ in range(30))):
        case(content)
