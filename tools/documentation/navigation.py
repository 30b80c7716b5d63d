"""Which pages the site has, in which order, from docs/navigation.toml."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class DocumentationError(Exception):
    """A page that is missing, or says something that is not so."""


@dataclass(frozen=True)
class Section:
    """A part of the site: a tab at its top."""

    title: str
    pages: tuple[str, ...]
    """Paths below docs/, or of the repository if they begin with ../; `folder/*` are all made pages of that folder."""


def sections(file: Path = DOCS / "navigation.toml") -> list[Section]:
    """The sections with the pages that are there. One marked with ? may be missing, one with * stands for many."""
    listed = tomllib.loads(file.read_text())["section"]
    return [Section(item["title"], tuple(_present(item["pages"], file.parent))) for item in listed]


def _present(pages: list[str], folder: Path) -> Iterator[str]:
    for page in pages:
        path = page.removesuffix("?")
        if "*" in path and path.endswith(".md"):
            begin, _, rest = path.partition("*")
            found = (file.relative_to(folder / begin) for file in (folder / begin).glob(f"*{rest}"))
            yield from sorted(f"{begin}{file.as_posix()}" for file in found)
        elif not page.endswith("?") or (folder / path).exists():
            yield path


def place(page: str) -> str:
    """Where a page lies in the site."""
    return page if not page.startswith("../") else page.removeprefix("../").lower()


def sources(found: list[Section], made: Mapping[str, str], folder: Path = DOCS) -> dict[str, Path]:
    """The file of every page that is not made, by its place in the site."""
    pages = [page for section in found for page in section.pages if page not in made and not page.endswith("/*")]
    twice = sorted({page for page in pages if pages.count(page) > 1})
    if twice:
        raise DocumentationError(f"docs/navigation.toml names more than once: {', '.join(twice)}")
    files = {place(page): (folder / page).resolve() for page in pages}
    missing = sorted(str(file) for file in files.values() if not file.is_file())
    if missing:
        raise DocumentationError(f"docs/navigation.toml names pages that are not there: {', '.join(missing)}")
    left = {file.resolve() for file in folder.rglob("*.md")} - set(files.values())
    if left:
        names = ", ".join(sorted(file.relative_to(folder.resolve()).as_posix() for file in left))
        raise DocumentationError(f"pages that docs/navigation.toml does not name: {names}")
    return files


def entries(found: list[Section], texts: Mapping[str, str], groups: Mapping[str, str]) -> str:
    """The navigation as a value of TOML; made pages of a folder stand below their group."""
    return "[" + ", ".join(_entry(section, texts, groups) for section in found) + "]"


def _entry(section: Section, texts: Mapping[str, str], groups: Mapping[str, str]) -> str:
    inside = []
    for page in section.pages:
        if page.endswith("/*"):
            inside += _grouped(posixpath.dirname(page), texts, groups)
        else:
            inside.append(_line(place(page), texts))
    return f"{{{_quoted(section.title)} = [{', '.join(inside)}]}}"


def _grouped(folder: str, texts: Mapping[str, str], groups: Mapping[str, str]) -> list[str]:
    pages = sorted(page for page in texts if posixpath.dirname(page) == folder)
    return [
        f"{{{_quoted(group)} = [{', '.join(_line(page, texts) for page in pages if groups[page] == group)}]}}"
        for group in sorted({groups[page] for page in pages})
    ]


def _line(page: str, texts: Mapping[str, str]) -> str:
    return f"{{{_quoted(title_of(texts[page], page))} = {_quoted(page)}}}"


def title_of(text: str, page: str) -> str:
    """The first heading of a page; the first page is home."""
    if page == "index.md":
        return "Home"
    heading = re.search(r"^# (.+)$", text, re.M)
    if heading is None:
        raise DocumentationError(f"{page} has no heading")
    return heading[1].replace("`", "")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
