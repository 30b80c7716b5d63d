"""Lines of each method's file without docstrings, comments, blank lines and imports, as the table in CONTRIBUTING.md.

python tools/method_lines.py            # print the table
python tools/method_lines.py --write    # put it into CONTRIBUTING.md
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
METHODS = ROOT / "src" / "fewfed" / "methods"
BEGIN, END = "<!-- method lines -->", "<!-- end of method lines -->"


def count(path: Path) -> int:
    """Lines that say something: the file as the parser sees it, written out again one statement a line."""
    module = ast.parse(path.read_text())
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    module.body = [node for node in module.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return sum(1 for line in ast.unparse(module).splitlines() if line.strip())


def table() -> str:
    counts = {
        path.stem.replace("_", "-"): count(path)
        for path in sorted(METHODS.glob("*.py"))
        if path.stem not in ("__init__", "registry")
    }
    rows = [f"| {name} | {lines} |" for name, lines in counts.items()]
    median = statistics.median(counts.values())
    head = f"{len(counts)} files, median {median:g} lines.\n\n| method | lines |\n|---|---|\n"
    return head + "\n".join(rows)


def main() -> None:
    text = f"{BEGIN}\n{table()}\n{END}"
    if "--write" not in sys.argv:
        print(text)
        return
    page = ROOT / "CONTRIBUTING.md"
    content = page.read_text()
    start, stop = content.index(BEGIN), content.index(END) + len(END)
    page.write_text(content[:start] + text + content[stop:])


if __name__ == "__main__":
    main()
