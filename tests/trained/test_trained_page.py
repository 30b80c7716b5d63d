"""The examples on the page about trained models run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
LONG, SHORT = "clients=40, cohort=8, rounds=30", "clients=6, cohort=3, rounds=1"


def test_the_examples_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert LONG in blocks[0]
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks).replace(LONG, SHORT), {"__name__": __name__})
    said = capsys.readouterr().out
    assert "(1, 8, 8)" in said
    assert "(5, 10)" in said
