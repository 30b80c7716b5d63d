"""Writes docs/methods.md from what the methods say of themselves.

python tools/method_page.py > docs/methods.md
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from fewfed.report.catalogue import catalogue, phase_text

HEAD = """# Methods

What leaves a client in each phase: what it is (`model` weights, `features` of single rows,
`statistics` of many, ...; left out where its name says it) and how it is combined. `mean` and
`sum` may go through secure aggregation, `concat` and `keep` are seen raw by the server; `0.1 a
row` means a tenth as many rows as the client has. `fewfed methods NAME` prints a method in full,
with its docstring (equations, deviations) and its parameters with ranges and the authors' values.
Written `name:preset`; methods around methods are written `outer(inner)`, as in `sem(flea)` or
`ccvr:gaussian(fedntd)`. This page is made by `tools/method_page.py`.
"""


def main() -> None:
    print(HEAD)
    entries = catalogue()
    for family in sorted({entry["family"] for entry in entries}):
        print(f"## {family[0].upper()}{family[1:]}\n")
        print("| method | what it does | leaves the client | state | presets |\n|---|---|---|---|---|")
        for entry in (e for e in entries if e["family"] == family):
            label = f"{entry['name']}(METHOD)" if entry["wraps"] else entry["name"]
            sent = "<br>".join(map(phase_text, entry["phases"]))
            state = "kept" if any(phase["state"] for phase in entry["phases"]) else ""
            summary = entry["summary"].replace("|", "\\|")
            print(f"| `{label}` | {summary} | {sent} | {state} | {', '.join(entry['presets'])} |")
        print()


if __name__ == "__main__":
    main()
