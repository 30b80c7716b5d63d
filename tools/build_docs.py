"""Builds the documentation site: python tools/build_docs.py [--out build/docs]

Pages of docs/ and some of the repository are put together with those that are made from the code (one a method, the
reference), then Zensical builds them strictly. What it does not look at is checked here: links of the built pages, and
that nothing is asked for from elsewhere. The site is the folder `site` below; open its index.html.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from documentation.navigation import DOCS, ROOT, DocumentationError

from documentation import links, method_pages, navigation, reference

THEME = Path(__file__).resolve().parent / "documentation" / "theme"


def main() -> int:
    torch.set_num_threads(1)  # Everything here is small.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    try:
        site = build(parser.parse_args().out.resolve())
    except DocumentationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")
    return 0


def build(out: Path) -> Path:
    """The site in a folder: `source` are its pages as Markdown, `site` what is built of them."""
    written(out)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(out / "zensical.toml")],
        cwd=out,
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr)
    if built.returncode:
        raise DocumentationError(f"zensical found faults:\n{told}")
    found = links.faults(out / "site")
    if found:
        raise DocumentationError("the built site has faults:\n" + "\n".join(found))
    return out / "site"


def written(out: Path) -> None:
    """The source of the site, written to a folder that is made anew."""
    sections = navigation.sections()
    groups = method_pages.groups()
    made = {**method_pages.pages(), **reference.pages()}
    files = navigation.sources(sections, made)
    places = {file: page for page, file in files.items()}
    texts = dict(made)
    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    for page, file in files.items():
        moved = links.moved(file.read_text(), file, page, places)
        texts[page] = method_pages.linked(moved.text) if file == DOCS / "methods.md" else moved.text
        for spot, picture in moved.pictures.items():
            (source / spot).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, source / spot)
    for page, text in texts.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text)
    shutil.copytree(THEME / "assets", source / "assets")
    settings, listed = (THEME / "zensical.toml").read_text(), navigation.entries(sections, texts, groups)
    (out / "zensical.toml").write_text(settings.replace("nav = []", f"nav = {listed}"))


if __name__ == "__main__":
    sys.exit(main())
