"""Pages about attacks are made from what is kept, and the strongest attacker is the one that is shown."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fewfed.reproduction.attacked import head, plain, row, strongest, told

ROOT = Path(__file__).parents[2]
PAGES = {"flea": "fig9", "flair": "table3"}


def _script(paper: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        PAGES[paper], ROOT / "reproduce" / paper / "privacy" / f"{PAGES[paper]}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PAGES[paper]] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("paper", PAGES)
def test_the_page_is_that_of_the_kept_results(paper: str) -> None:
    module = _script(paper)
    assert (module.HERE / module.PAGE).read_text() == module.page()


def _finding(variant: str, round: int, value: float) -> dict[str, Any]:
    measure = {"what": "AUC", "value": value, "low": value - 0.1, "high": value + 0.1}
    return {"attack": "membership", "variant": variant, "round": round, "measures": [measure]}


def test_the_strongest_of_the_last_round_is_shown() -> None:
    findings = [_finding("a", 1, 0.9), _finding("b", 5, 0.6), _finding("c", 5, 0.7)]
    best = strongest(findings, "membership", "AUC")
    assert best is not None
    assert (best["by"], best["value"]) == ("c", 0.7)
    assert told(best) == "0.70 (0.60 to 0.80)"
    assert strongest(findings, "gradient", "AUC") is None
    assert told(None) == ""


def test_names_and_rows() -> None:
    assert plain("flea, lambda2 = 0") == "flea-lambda2--0"
    assert head(("a", "b")) == ["| a | b |", "|---|---|"]
    assert row(("1", "2")) == "| 1 | 2 |"
