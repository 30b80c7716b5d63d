"""The picture of a comparison."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fewfed.errors import ConfigError
from fewfed.report.curves import curve_of, plot_curves
from fewfed.runs.folder import RunFolder


def run_with(folder: Path, accuracies: list[float | None]) -> Path:
    made = RunFolder.create(folder, {}, {}, {})
    made.restore(lambda states: None, len(accuracies))
    for number, value in enumerate(accuracies, 1):
        made.append({"round": number, **({} if value is None else {"accuracy": value})})
    return folder


def test_a_curve_has_the_evaluated_rounds(tmp_path: Path) -> None:
    assert curve_of(run_with(tmp_path / "a", [None, 0.5, None, 0.75])) == ([2, 4], [0.5, 0.75])


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_of_methods_and_seeds(suffix: str, begins: bytes, tmp_path: Path) -> None:
    runs = {
        "one": [run_with(tmp_path / "one", [0.1, 0.2])],
        "two": [run_with(tmp_path / "two", [0.1, 0.3]), run_with(tmp_path / "three", [0.2, 0.5])],
    }
    plot_curves(runs, tmp_path / f"curves.{suffix}", "a title")
    assert (tmp_path / f"curves.{suffix}").read_bytes().startswith(begins)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"fewfed\[plot\]"):
        plot_curves({}, tmp_path / "curves.png", "")
