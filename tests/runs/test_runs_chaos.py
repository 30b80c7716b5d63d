"""A short version of `make chaos`: each kind of fault a few times, at moments that differ from run to run."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "tools" / "chaos.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module
    spec.loader.exec_module(module)
    return module


chaos = load()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> object:
    return chaos.Chaos(tmp_path_factory.mktemp("chaos"), seed=random.randrange(2**31))


OFTEN = ("program killed", "files damaged")


@pytest.mark.parametrize(
    "fault", [fault if fault in OFTEN else pytest.param(fault, marks=pytest.mark.thorough) for fault in chaos.FAULTS]
)
def test_a_run_that_is_disturbed_ends_the_same_or_refuses_in_a_sentence(fault: str, cases: object) -> None:
    number = next(number for number in range(10_000) if cases.kind_of(number) == fault)  # type: ignore[attr-defined]
    before = len(cases.faults)  # type: ignore[attr-defined]
    cases.run(number)  # type: ignore[attr-defined]
    assert cases.faults[before:] == []  # type: ignore[attr-defined]


def test_a_wrong_end_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: a run that ends elsewhere, and one that ends with a traceback."""
    made = chaos.Chaos(tmp_path, seed=0)
    reference, seconds = made.reference("fedavg", chaos.EXECUTORS[0])
    case = chaos.Case("flea", chaos.EXECUTORS[0], reference, seconds, tmp_path, random.Random(0))
    with pytest.raises(chaos.Fault, match="than undisturbed"):
        case.finish()
    monkeypatch.setattr(chaos.Program, "said", lambda self: "Traceback (most recent call last):")
    with pytest.raises(chaos.Fault, match="a traceback"):
        case.finish()
