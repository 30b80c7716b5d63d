"""Tables that a spreadsheet opens: a name in them is never a formula."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed.report.overview import overview
from fewfed.report.page.write import write_report
from fewfed.report.spreadsheet import as_csv
from fewfed.report.survey import survey
from report_support import write_run

FORMULAS = ("=1+2", "+1+2", "-1+2", "@SUM(1)", "=cmd|' /C calc'!A0", '=HYPERLINK("http://x","y")', "＝1＋2")


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_that_a_spreadsheet_would_compute_is_text(name: str) -> None:
    assert read(as_csv([name, "b"], [{name: name, "b": 1}])) == [[f"'{name}", "b"], [f"'{name}", "1"]]


@pytest.mark.parametrize("value", [-1, -0.5, "-0.5", "+3", "-1e-7", 0.1, None, "", "a=b", "flea", "−0.5"])
def test_numbers_and_plain_names_stay_as_they_are(value: object) -> None:
    assert read(as_csv(["a", "b"], [{"a": value, "b": 0}]))[1] == ["" if value is None else str(value), "0"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers())
def test_any_text_comes_back_but_for_the_sign_before_it(text: str, number: int) -> None:
    (_, (name, value)) = read(as_csv(["a", "b"], [{"a": text, "b": number}]))
    assert value == str(number)
    text = text.replace("\r", " ")
    assert name in (text, f"'{text}")
    assert not name.startswith(("=", "@"))
    if name.startswith(("+", "-")):
        float(name)


def test_no_table_of_a_report_holds_a_formula(tmp_path: Path) -> None:
    for method in ("fedavg", "flea"):
        for seed in range(2):
            write_run(tmp_path / f"{method}{seed}", method, seed, label=f"={method}()", classes=FORMULAS[:2],
                      sites=FORMULAS)  # fmt: skip
    written = write_report([tmp_path])
    tables = [(written.tables / name).read_text() for name in written.files if name.endswith(".csv")]
    cells = [cell for text in (*tables, overview(survey([tmp_path])).to_csv()) for row in read(text) for cell in row]
    assert "'=flea()" in cells
    assert "'=1+2" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@", "＝"))]
