"""Links of pages: from a file of the repository to its place in the site, and whether those of the result lead on."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from documentation.navigation import ROOT, DocumentationError

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Moved:
    """A page's text as it stands in the site, and the pictures it shows, by their place there."""

    text: str
    pictures: dict[str, Path] = field(default_factory=dict)


def moved(text: str, source: Path, page: str, places: Mapping[Path, str]) -> Moved:
    """Links of a file of the repository as those of a page of the site.

    A link to a file that is no page is left as the file's name. Drawings become part of the page, so that they follow
    its light and dark.
    """
    pictures: dict[str, Path] = {}

    def turn(link: re.Match[str]) -> str:
        shown, words, target = link.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        file = (source.parent / path).resolve()
        if not file.exists():
            raise DocumentationError(f"{source.relative_to(ROOT)}: no file for the link to {target}")
        if shown and file.suffix == ".svg" and 'class="alone"' in (drawing := file.read_text()):
            return _inlined(drawing, words)
        if file.suffix in _PICTURES:
            spot = f"pictures/{file.name}"
            pictures[spot] = file
            return f"{shown}[{words}]({_from(page, spot)})"
        if file not in places:
            return f"{words} (`{file.relative_to(ROOT).as_posix()}`)"
        return f"[{words}]({_from(page, places[file])}{'#' + anchor if anchor else ''})"

    return Moved(outside_code(text, lambda part: _LINK.sub(turn, part)), pictures)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Text with everything changed but blocks of code."""
    pieces = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)
    return "".join(piece if piece.lstrip().startswith("```") else change(piece) for piece in pieces)


def _inlined(drawing: str, words: str) -> str:
    body = drawing[drawing.index("<svg") :].replace(
        'class="alone"', f'role="img" aria-label="{" ".join(words.split())}"'
    )
    return f'<div class="drawing" tabindex="0" role="group" aria-label="drawing">{" ".join(body.split())}</div>'


def _from(page: str, target: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


class _Page(HTMLParser):
    """What a built page links to, what it asks for, and where it can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.asked: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.asked.append(given["href"])
        elif "src" in given:
            self.asked.append(given["src"])


def faults(site: Path) -> list[str]:
    """What is wrong with a built site: links that lead nowhere, things from elsewhere, Markdown left as it was."""
    pages = {file: _Page() for file in sorted(site.rglob("*.html"))}
    texts = {file: file.read_text() for file in pages}
    for file, page in pages.items():
        page.feed(texts[file])
    return [fault for file in pages for fault in _faults(file, texts[file], pages, site)]


def _faults(file: Path, text: str, pages: Mapping[Path, _Page], site: Path) -> Iterator[str]:
    name = file.relative_to(site).as_posix()
    for asked in pages[file].asked:
        if "://" in asked or asked.startswith("//"):
            yield f"{name}: asks for {asked}"
    inside = (target for target in [*pages[file].links, *pages[file].asked] if not re.match(r"[a-z]+:|//", target))
    for target in inside:
        path, _, anchor = target.split("?")[0].partition("#")
        found = Path(os.path.normpath(file.parent / unquote(path))) if path else file
        found = found / "index.html" if found.is_dir() else found
        if file.name == "404.html" and path.startswith("/"):
            continue  # This page is shown at any address, so that its links begin at the root of a server.
        if not found.is_file():
            yield f"{name}: no page for the link to {target}"
        elif anchor and found in pages and unquote(anchor) not in pages[found].ids:
            yield f"{name}: no such place on the page: {target}"
    for left in re.findall(r"<p>(?:[^<]*\n)?(?:- |\d+\. |\||```)[^<]{0,60}", text):
        yield f"{name}: Markdown that was not understood: {left.strip()!r}"
