"""Pages in a real browser: what they draw, what they ask for from outside, what they complain about.

Debian's Chromium, or the one that the variable FEWFED_BROWSER names, driven by Playwright.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def browser_file() -> str | None:
    """The browser of this machine."""
    named = os.environ.get("FEWFED_BROWSER", "")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def needs_browser() -> Any:
    """A mark: where there is no browser, a test is left out and says why; in CI it fails."""
    missing = browser_file() is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason="no chromium on this machine: install it, or name one in FEWFED_BROWSER")


@dataclass
class Visit:
    """A page that is open, and what it did while it was."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings on the console, and errors nobody caught."""
    outside: list[str] = field(default_factory=list)
    """Requests to anywhere but this page's own place."""

    def keep(self, file: Path) -> Path:
        """A picture of the whole page."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(file), full_page=True)
        return file

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    found = browser_file()
    assert found is not None, "no browser"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(
    browser: Any,
    place: str | Path,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    allowed: Sequence[str] = LOOPBACK,
) -> Iterator[Visit]:
    """A file, or an address on this machine, as somebody with such a window sees it. No request leaves the machine."""
    address = place.resolve().as_uri() if isinstance(place, Path) else place
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    visit = Visit(context.new_page())

    def judge(route: Any) -> None:
        asked = route.request.url
        own = asked.startswith(("data:", "blob:", "about:")) or (
            asked.startswith("file:") if address.startswith("file:") else asked.split("/")[2].split(":")[0] in allowed
        )
        if own:
            route.continue_()
        else:
            visit.outside.append(asked)
            route.abort()

    def hear(said: Any) -> None:
        if said.type in ("error", "warning"):
            visit.complaints.append(f"{said.type}: {said.text}")

    context.route("**/*", judge)
    visit.page.on("console", hear)
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"uncaught: {error}"))
    try:
        visit.page.goto(address)
        yield visit
    finally:
        context.close()
