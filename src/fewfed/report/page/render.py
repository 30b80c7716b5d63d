"""How a page looks: one HTML text that needs nothing beside it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from fewfed.report.page.contents import Contents, plain
from fewfed.report.page.figures import COLOURS, dash_of
from fewfed.report.page.sheets import Cell

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE, _LIVE = "fewfed.report.page", "fewfed.report.live"
_ESCAPED = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})
"""What could end a script or begin another, as JSON may write it."""


def render(contents: Contents, live: bool = False) -> str:
    """The page. `live`: it asks the server it came from for `data.json`, again and again, and shows what is new."""
    style = Markup(_file("vendor/uplot.min.css") + _file("page.css") + (_file("live.css", _LIVE) if live else ""))
    vendor, script = Markup(_file("vendor/uplot.min.js")), Markup(_file("page.js"))
    progress, following = (Markup(_file(name, _LIVE)) if live else Markup() for name in ("live.html", "live.js"))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            contents=contents,
            live=live,
            style=style,
            vendor=vendor,
            script=script,
            progress=progress,
            following=following,
            data=Markup(embedded({"charts": charts_of(contents)})),
            policy=_policy(style, (vendor, script, following), live),
        )
    )


def update(contents: Contents) -> dict[str, Any]:
    """What a live page asks for: its words and tables anew, and the numbers of its charts."""
    return {"main": render_main(contents), "charts": charts_of(contents)}


def render_main(contents: Contents) -> str:
    """The page without what is around it."""
    return _environment().get_template("main.html.j2").render(contents=contents)


def charts_of(contents: Contents) -> list[dict[str, Any]]:
    """What the page's script draws, plain data."""
    return [plain(dataclasses.asdict(chart)) for task in contents.tasks for chart in task.charts]


def embedded(content: Any) -> str:
    """JSON that can stand inside a page, whatever names it holds."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fewfed.report.page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(attributes=_attributes, breakable=_breakable, dash=dash_of, colours=COLOURS)
    return made


def _attributes(cell: Cell, number: bool) -> Markup:
    """Of a table's cell: whether it is a number, how dark it is, and what it is sorted by."""
    classes = [*(["n"] if number else []), *([f"h{cell.shade}"] if cell.shade is not None else [])]
    made = Markup(' class="{}"').format(" ".join(classes)) if classes else Markup("")
    return made + (Markup(' data-v="{}"').format(f"{cell.value:.6g}") if cell.value is not None else "")


def _breakable(text: str) -> Markup:
    """A name that may go on in the next line where a method inside another begins, before it is cut anywhere else."""
    return escape(text).replace("(", Markup("(<wbr>"))


@cache
def _file(name: str, package: str = _HERE) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, scripts: tuple[str, ...], live: bool) -> str:
    """What the browser lets the page do: its own scripts and style, and nothing from anywhere else."""
    parts = [
        "default-src 'none'",
        f"style-src {_hash(style)}",
        f"script-src {' '.join(_hash(script) for script in scripts)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    return "; ".join(parts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
