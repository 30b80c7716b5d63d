"""The documentation site: built strictly, complete, without a request to elsewhere, and good to use in a browser."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation.navigation import DocumentationError, Section

from browsing import chromium, needs_browser, visiting
from contrast import too_faint
from documentation import links, navigation
from documents import ROOT
from fewfed.methods.registry import presets_of, registered

SHOTS = ROOT / "shots" / "docs"
SOME = ("index.html", "start.html", "which.html", "concepts.html", "methods/flea.html", "reference/commands.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` does."""
    out = tmp_path_factory.mktemp("docs")
    tool = ROOT / "tools" / "build_docs.py"
    built = subprocess.run(
        [sys.executable, str(tool), "--out", str(out)], capture_output=True, text=True, check=False, timeout=280
    )
    assert built.returncode == 0, built.stderr
    return out / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def test_every_method_has_a_page_with_what_it_is_for_what_leaves_and_what_can_be_set(site: Path) -> None:
    for name, cls in registered().items():
        text = re.sub(r"<[^>]+>", "", (site / "methods" / f"{name}.html").read_text())
        assert all(preset in text for preset in presets_of(name))
        assert re.search("No formal bound holds|These bounds hold|all rows", text), name
        for field in dataclasses.fields(cls):
            assert field.name in text


def test_a_list_in_the_description_of_a_method_is_a_list_on_its_page(site: Path) -> None:
    found = 0
    for name, cls in registered().items():
        page = (site / "methods" / f"{name}.html").read_text()
        described = page.partition('id="what-it-does"')[2].partition('id="what-leaves-a-site"')[0]
        points = re.findall(r"^\s*- ", cls.__doc__ or "", re.M)
        assert described.count("<li>") == len(points), name
        found += len(points)
    assert found > 0


def test_every_page_of_the_repository_is_in_the_navigation_and_every_listed_one_is_built(site: Path) -> None:
    listed = [page for section in navigation.sections() for page in section.pages if not page.endswith("/*")]
    for page in listed:
        assert (site / navigation.place(page)).with_suffix(".html").is_file()
    assert {file.name for file in (ROOT / "docs").rglob("*.md")} <= {Path(page).name for page in listed}


def test_pages_that_colleagues_have_not_written_yet_are_picked_up_when_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "navigation.toml").write_text('[[section]]\ntitle = "S"\npages = ["a.md", "b.md?", "more/*.md"]\n')
    assert navigation.sections(tmp_path / "navigation.toml") == [Section("S", ("a.md",))]
    (tmp_path / "b.md").write_text("# B\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.md").write_text("# C\n")
    assert navigation.sections(tmp_path / "navigation.toml") == [Section("S", ("a.md", "b.md", "more/c.md"))]


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        (("a.md",), "does not name: b.md"),
        (("a.md", "b.md", "c.md"), "not there: .*c.md"),
        (("a.md", "b.md", "a.md"), "more than once: a.md"),
    ],
)
def test_a_page_that_is_missing_forgotten_or_named_twice_is_refused(
    pages: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"# {name}\n")
    with pytest.raises(DocumentationError, match=said):
        navigation.sources([Section("S", pages)], {}, tmp_path)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="b.html#there">x</a>', ""),
        ('<a href="#here">x</a><p id="here">', ""),
        ('<a href="https://example.org">x</a>', ""),
        ('<a href="c.html">x</a>', "no page for the link to c.html"),
        ('<a href="b.html#gone">x</a>', "no such place on the page: b.html#gone"),
        ('<img src="gone.png">', "no page for the link to gone.png"),
        ('<script src="https://example.org/x.js"></script>', "asks for https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "asks for //example.org/x.css"),
        ("<p>Words:\n- one\n- two</p>", "Markdown that was not understood"),
        ("<p>| a | b |</p>", "Markdown that was not understood"),
    ],
)
def test_what_the_builder_does_not_see_is_found_in_the_built_pages(body: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h2 id="there">')
    found = links.faults(tmp_path)
    assert len(found) == (1 if fault else 0)
    assert fault in "".join(found)


@pytest.mark.parametrize("link", ["gone.md", "other.md#gone", "#gone"])
def test_the_builder_refuses_broken_links(link: str, tmp_path: Path) -> None:
    settings = (ROOT / "tools" / "documentation" / "theme" / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(settings)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(f"# Home\n\n[x]({link})\n")
    (tmp_path / "source" / "other.md").write_text("# Other\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0


def test_links_of_the_repository_become_links_of_the_site(tmp_path: Path) -> None:
    page, other = ROOT / "docs" / "model.md", ROOT / "CONTRIBUTING.md"
    text = "[a](../CONTRIBUTING.md#glossary) [b](../src/fewfed/tree.py) [c](https://x.org) [d](#e)\n```\n[f](g)\n```\n"
    moved = links.moved(text, page, "deep/model.md", {page: "deep/model.md", other: "contributing.md"})
    assert moved.text == (
        "[a](../contributing.md#glossary) b (`src/fewfed/tree.py`) [c](https://x.org) [d](#e)\n```\n[f](g)\n```\n"
    )
    with pytest.raises(DocumentationError, match="no file for the link"):
        links.moved("[a](gone.md)", page, "model.md", {})


def test_paragraphs_on_when_to_use_a_method_are_there_and_lead_to_pages() -> None:
    said = tomllib.loads((ROOT / "docs" / "methods" / "when.toml").read_text())
    assert set(said) == set(registered())
    for name, entry in said.items():
        assert set(entry) == {"when"}
        assert 25 < len(entry["when"].split()) < 120, name


@needs_browser()
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_show_in_a_browser_without_complaint_request_or_overflow(
    site: Path, browser: Any, scheme: Any, width: int
) -> None:
    for place in SOME:
        with visiting(browser, site / place, width=width, scheme=scheme) as visit:
            visit.page.wait_for_timeout(150)
            visit.keep(SHOTS / f"{place.replace('/', '-').removesuffix('.html')}-{width}-{scheme}.png")
            assert (visit.complaints, visit.outside) == ([], [])
            assert visit.overflow <= 0, place
            assert (
                visit.page.evaluate("document.body.dataset.mdColorScheme")
                == {"light": "default", "dark": "slate"}[scheme]
            )
            assert too_faint(visit.page, "main") == []


@needs_browser()
def test_lines_are_of_a_readable_width(site: Path, browser: Any) -> None:
    with visiting(browser, site / "concepts.html", width=1920, height=1000) as visit:
        wide = visit.page.evaluate("Math.max(...[...document.querySelectorAll('article p')].map(p => p.clientWidth))")
        size = float(visit.page.evaluate("parseFloat(getComputedStyle(document.querySelector('article p')).fontSize)"))
        assert wide / size < 50  # About 100 letters.


@needs_browser()
def test_search_finds_a_method_in_pages_that_were_opened_as_files(site: Path, browser: Any) -> None:
    with visiting(browser, site / "index.html") as visit:
        visit.page.keyboard.press("Control+k")
        visit.page.keyboard.type("decorrelated")
        visit.page.get_by_text(re.compile(r"^\d+ results$")).wait_for(timeout=20_000)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**/*decorrelated*", timeout=10_000)
        assert (visit.complaints, visit.outside) == ([], [])


@needs_browser()
def test_the_keyboard_reaches_sections_pages_and_what_scrolls(site: Path, browser: Any) -> None:
    with visiting(browser, site / "concepts.html", width=360) as visit:
        reached = _tabbed(visit.page, 60)
        assert any("drawing" in each for each in reached)
    with visiting(browser, site / "index.html") as visit:
        reached = _tabbed(visit.page, 40)
        assert any("start.html" in each for each in reached)
        assert any("methods.html" in each for each in reached)


def _tabbed(page: Any, times: int) -> list[str]:
    """What the tabulator key comes to, by link or class."""
    found = []
    for _ in range(times):
        page.keyboard.press("Tab")
        found.append(str(page.evaluate("(e => (e.href || '') + ' ' + (e.className || ''))(document.activeElement)")))
    return found


@needs_browser()
def test_the_drawing_follows_the_page_and_not_the_machine(site: Path, browser: Any) -> None:
    def ink(page: Any) -> Any:
        return page.evaluate("getComputedStyle(document.querySelector('.drawing .round-title')).fill")

    with visiting(browser, site / "concepts.html", scheme="light") as visit:
        before = ink(visit.page)
        visit.page.locator("label[title='Switch to dark mode']").click()
        visit.page.wait_for_timeout(200)
        assert ink(visit.page) != before


@needs_browser()
def test_nothing_in_the_drawing_lies_on_its_words(site: Path, browser: Any) -> None:
    """Letters are wider in some fonts than in others; here they are those of this machine."""
    overlaps = """() => {
      const box = (one) => one.getBoundingClientRect(), all = (kind) => document.querySelectorAll(".drawing " + kind);
      const found = [];
      for (const circle of all("circle")) for (const text of all("text")) {
        const a = box(circle), b = box(text);
        if (text.classList.contains("round-digit")) continue;
        if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push(text.textContent);
      }
      return found;
    }"""
    with visiting(browser, site / "concepts.html") as visit:
        assert visit.page.locator(".drawing circle").count() == 7
        assert visit.page.evaluate(overlaps) == []
