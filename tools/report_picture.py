"""The picture of a report that README shows: `python tools/report_picture.py runs/demo/report.html`."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
PICTURE = ROOT / "docs" / "pictures" / "report.png"
WIDTH, HEIGHT = 1120, 1330
_COLOURS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    from browsing import chromium, visiting

    with chromium() as browser, visiting(browser, asked.page, width=WIDTH, height=HEIGHT) as visit:
        visit.page.wait_for_selector("canvas")
        taken = Image.open(io.BytesIO(visit.page.screenshot()))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    taken.convert("RGB").quantize(_COLOURS).save(asked.out, optimize=True)
    print(f"{asked.out}: {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
