"""Documents that are made from the code say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fewfed.methods.registry import presets_of, registered

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_of_method_lines_is_current_and_its_median_is_small() -> None:
    spec = importlib.util.spec_from_file_location("method_lines", ROOT / "tools" / "method_lines.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    table = tool.table()
    assert table in (ROOT / "CONTRIBUTING.md").read_text(), "run: python tools/method_lines.py --write"
    assert float(table.split("median ")[1].split(" ")[0]) < 40


def test_every_method_and_preset_is_on_the_page_of_methods() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    for name in registered():
        row = next((line for line in page.splitlines() if line.startswith((f"| `{name}`", f"| `{name}("))), "")
        assert row, f"'{name}' is missing: run python tools/method_page.py > docs/methods.md"
        assert all(preset in row for preset in presets_of(name))
