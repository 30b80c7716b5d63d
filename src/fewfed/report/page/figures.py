"""Figures as SVG: for the page where no script runs, for print, and as files for papers.

Colours are classes (`s0` strokes, `f0` fills), so that the page's style decides about light and dark; a file carries a
style of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fewfed.report.page.charts import ROUND, Chart, Line, thinned
from fewfed.report.page.detail import Counts, Panel
from fewfed.report.page.lettering import shortened, width

COLOURS = 8
DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Strokes, solid first: lines differ in them once all colours are used, and each colour has its own from the start."""
LIGHT = ("#0b62a8", "#b34700", "#00785a", "#9c2f7a", "#7a5c00", "#3d3d3d", "#5b45c4", "#a3243b")
"""Colours that stay apart for readers who see fewer of them, each dark enough for text on white."""
SHADES = 9
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.grid{stroke:#ddd}.axis{stroke:#999}.band{opacity:.13}"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{opacity:.75}"
    + "".join(f".s{n}{{stroke:{colour}}}.f{n}{{fill:{colour}}}" for n, colour in enumerate(LIGHT))
    + ".frame{fill:none;stroke:#bbb}"
    + "".join(f".h{n}{{fill:{LIGHT[0]};opacity:{n / SHADES:.2f}}}" for n in range(1, SHADES + 1))
)
_UPRIGHT = 14.0
"""Width of a column that has room for a name read from below."""
_CLASS_ROOM, _SITE_ROOM, _METHOD_ROOM = 104.0, 170.0, 174.0
"""What names of classes and sites may take in the picture of a split, and those of methods beside their intervals."""
_POINTS = 120
"""Of a line in a figure, which is small."""


@dataclass(frozen=True)
class Box:
    """Where things lie in a figure, and which numbers lie there."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        return self.left + self.width * (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)

    def down(self, value: float) -> float:
        return self.top + self.height * (1 - (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1))


def standing_alone(figure: str) -> str:
    """A figure as a file: with its namespace and a style."""
    opened, _, rest = figure.partition(">")
    return f'{opened} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{rest}\n'


def lines_figure(chart: Chart, wide: int = 720, high: int = 400) -> str:
    """Lines with bands, and their names below."""
    lines = [line for line in chart.lines if line.shown] or list(chart.lines[:1])
    names = list(_legend(lines, 56, high, wide))
    low = min(value for line in lines for value in (*line.mean, *line.low))
    top = max(value for line in lines for value in (*line.mean, *line.high))
    ends = [place for line in lines for place in (line.x[0], line.x[-1])]
    below, above = _padded(low, top)
    across = (min(ends), max(ends) if max(ends) > min(ends) else min(ends) + 1)
    box = Box(56, 12, wide - 72, high - 64, across, (below, above))
    inside = [
        *_axes(box, chart.x, chart.y),
        *(_band(box, line) for line in lines),
        *(_path(box, line) for line in lines),
    ]
    rows = 1 + max((row for row, _ in names), default=0)
    return _svg(wide, high + 20 * rows, chart.title, chart.told, [*inside, *(text for _, text in names)])


def intervals_figure(rows: Sequence[tuple[str, float, float | None, int]], unit: str, told: str) -> str:
    """A row a method: its difference to the baseline, the interval around it, and a line at zero."""
    wide, each = 720, 28
    names = [shortened(label, _METHOD_ROOM) for label, *_ in rows]
    left = 18 + max(map(width, names))
    spans = [(mean - (half or 0), mean + (half or 0)) for _, mean, half, _ in rows]
    low, high = _padded(min(0.0, *(span[0] for span in spans)), max(0.0, *(span[1] for span in spans)))
    box = Box(left, 6, wide - left - 20, each * len(rows), (low, high), (0, 1))
    bottom = box.top + box.height
    parts = [Markup('<line class="grid" x1="{x}" x2="{x}" y1="6" y2="{y}"/>').format(x=_p(box.across(t)), y=_p(bottom))
             for t in ticks(low, high)]  # fmt: skip
    parts.append(
        Markup('<line class="axis" x1="{x}" x2="{x}" y1="6" y2="{y}"/>').format(x=_p(box.across(0)), y=_p(bottom))
    )
    for number, ((_, mean, half, mark), (start, end)) in enumerate(zip(rows, spans, strict=True)):
        y = box.top + each * (number + 0.5)
        colour = mark % COLOURS
        parts.append(_text(left - 12, y + 4, names[number], "end"))
        if half is not None:
            parts.append(Markup('<line class="line s{c}" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>').format(
                c=colour, a=_p(box.across(start)), b=_p(box.across(end)), y=_p(y)))  # fmt: skip
        parts.append(
            Markup('<circle class="f{c}" cx="{x}" cy="{y}" r="4.5"/>').format(c=colour, x=_p(box.across(mean)), y=_p(y))
        )
    parts += [
        _text(box.across(tick), bottom + 18, f"{tick:g}".replace("-", "−"), "middle") for tick in ticks(low, high)
    ]
    parts.append(_text(box.left + box.width / 2, bottom + 38, unit, "middle"))
    return _svg(wide, bottom + 46, "Differences to the baseline", told, parts)


def split_figure(counts: Counts, told: str) -> str:
    """Clients across, classes down; the darker, the more rows."""
    clients, classes = len(counts.clients), len(counts.classes)
    classes_called = [shortened(name, _CLASS_ROOM) for name in counts.classes]
    left = 20 + max(map(width, classes_called), default=7.0)
    cell = max(3.0, min(22.0, (720 - left - 10) / max(1, clients)))
    tall = max(8.0, min(22.0, 440 / max(1, classes)))
    most = max((count for row in counts.clients for count in row), default=0) or 1
    shades: dict[int, list[str]] = {}
    for client, row in enumerate(counts.clients):
        for place, count in enumerate(row):
            if count > 0:  # A single row is still seen beside a full cell.
                level = min(SHADES, max(1, math.ceil(SHADES * count / most)))
                wide, high = _p(cell - 0.6), _p(tall - 0.6)
                move = f"M{_p(left + client * cell)} {_p(6 + place * tall)}h{wide}v{high}h-{wide}z"
                shades.setdefault(level, []).append(move)
    parts = [
        Markup('<path class="h{n}" d="{d}"/>').format(n=level, d="".join(d)) for level, d in sorted(shades.items())
    ]
    bottom = 6 + classes * tall
    parts.append(Markup('<rect class="frame" x="{x}" y="5.5" width="{w}" height="{h}"/>').format(
        x=_p(left - 0.5), w=_p(clients * cell + 0.4), h=_p(classes * tall + 0.4)))  # fmt: skip
    step = max(1, math.ceil(13 / tall))
    parts += [
        _text(left - 8, 6 + (place + 0.5) * tall + 4, name, "end")
        for place, name in enumerate(classes_called)
        if place % step == 0
    ]
    if counts.names and cell >= _UPRIGHT:
        names = [shortened(name, _SITE_ROOM) for name in counts.names]
        parts += [_upright(left + (n + 0.5) * cell + 4, bottom + 10, name) for n, name in enumerate(names)]
        height = bottom + 20 + max(map(width, names))
    else:
        every = next((n for n in (1, 2, 5, 10, 20, 50, 100) if n * cell >= 26), 100)
        parts += [_text(left + (n + 0.5) * cell, bottom + 16, str(n), "middle") for n in range(0, clients, every)]
        parts.append(_text(left + clients * cell / 2, bottom + 36, "client", "middle"))
        height = bottom + 44
    return _svg(720, height, "Rows of each class on each client", told, parts)


def map_figure(panel: Panel, labels: Sequence[int], told: str) -> str:
    """Points on a plane, coloured by class; classes beyond the colours are hollow."""
    side = 300
    box = Box(6, 6, side - 12, side - 12, _range(panel.x), _range(panel.y))
    parts = [Markup('<rect class="frame" x="1" y="1" width="{s}" height="{s}"/>').format(s=side - 2)]
    for x, y, label in zip(panel.x, panel.y, labels, strict=True):
        kind = "f" if label < COLOURS else "line s"
        parts.append(Markup('<circle class="dot {k}{c}" cx="{x}" cy="{y}" r="2.4"/>').format(
            k=kind, c=label % COLOURS, x=_p(box.across(x)), y=_p(box.down(y))))  # fmt: skip
    return _svg(side, side, f"Features of {panel.name}", told, parts)


def ticks(low: float, high: float, count: int = 6, smallest: float = 0.0) -> list[float]:
    """Round numbers between two, not nearer to each other than `smallest`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = max(smallest, scale * next((size for size in (1, 2, 5) if size * scale >= rough), 10))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(box: Box, x: str, y: str) -> Iterable[str]:
    bottom = box.top + box.height
    for tick in ticks(*box.y):
        at = _p(box.down(tick))
        yield Markup('<line class="grid" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>').format(
            a=_p(box.left), b=_p(box.left + box.width), y=at
        )
        yield _text(box.left - 8, float(at) + 4, f"{tick:g}".replace("-", "−"), "end")
    for tick in ticks(*box.x, smallest=1.0 if x == ROUND else 0.0):
        yield _text(box.across(tick), bottom + 18, f"{tick:g}", "middle")
    yield Markup('<line class="axis" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>').format(
        a=_p(box.left), b=_p(box.left + box.width), y=_p(bottom)
    )
    yield _text(box.left + box.width / 2, bottom + 38, x, "middle")
    middle = box.top + box.height / 2
    yield Markup('<text x="14" y="{y}" text-anchor="middle" transform="rotate(-90 14 {y})">{t}</text>').format(
        y=_p(middle), t=y
    )


def _path(box: Box, line: Line) -> str:
    if len(line.x) == 1:
        return Markup('<circle class="f{c}" cx="{x}" cy="{y}" r="3.5"/>').format(
            c=line.mark % COLOURS, x=_p(box.across(line.x[0])), y=_p(box.down(line.mean[0]))
        )
    points = thinned(range(len(line.x)), _POINTS)
    places = "L".join(f"{_p(box.across(line.x[n]))} {_p(box.down(line.mean[n]))}" for n in points)
    dash = Markup(' stroke-dasharray="{}"').format(dash_of(line.mark)) if dash_of(line.mark) else ""
    return Markup('<path class="line s{c}"{dash} d="M{d}"/>').format(c=line.mark % COLOURS, dash=dash, d=places)


def _band(box: Box, line: Line) -> str:
    if not line.low:
        return ""
    points = thinned(range(len(line.x)), _POINTS)
    there = [f"{_p(box.across(line.x[n]))} {_p(box.down(line.high[n]))}" for n in points]
    back = [f"{_p(box.across(line.x[n]))} {_p(box.down(line.low[n]))}" for n in reversed(points)]
    return Markup('<path class="band f{c}" d="M{d}z"/>').format(c=line.mark % COLOURS, d="L".join([*there, *back]))


def dash_of(mark: int) -> str:
    """The stroke of a line: neighbours in the table differ in it, and so do lines of the same colour."""
    return DASHES[(mark + mark // COLOURS) % len(DASHES)]


def _legend(lines: Sequence[Line], left: float, top: float, right: float) -> Iterable[tuple[int, str]]:
    """Names of lines in rows, each with the number of its row."""
    x, row = left, 0
    for line in lines:
        name = shortened(line.label, right - left - 46)
        room = 46 + width(name)
        if x > left and x + room > right:
            x, row = left, row + 1
        y = top + 6 + 20 * row
        dash = Markup(' stroke-dasharray="{}"').format(dash_of(line.mark)) if dash_of(line.mark) else ""
        stroke = Markup('<line class="line s{c}"{dash} x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>').format(
            c=line.mark % COLOURS, dash=dash, a=_p(x), b=_p(x + 24), y=_p(y)
        )
        yield row, stroke + _text(x + 30, y + 4, name, "start")
        x += room


def _svg(width: float, height: float, title: str, told: str, inside: Iterable[str]) -> str:
    return Markup('<svg viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{inside}</svg>').format(
        w=_p(width), h=_p(height), label=f"{title}. {told}", inside=Markup("").join(inside)
    )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{x}" y="{y}" text-anchor="{a}">{t}</text>').format(
        x=_p(x), y=_p(y), a=anchor, t=escape(text)
    )


def _upright(x: float, y: float, text: str) -> Markup:
    """A text that is read from below."""
    return Markup('<text x="{x}" y="{y}" text-anchor="end" transform="rotate(-90 {x} {y})">{t}</text>').format(
        x=_p(x), y=_p(y), t=escape(text)
    )


def _p(value: float) -> str:
    """A place, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.05 * ((high - low) or abs(high) or 1)
    return low - room, high + room


def _range(values: Sequence[float]) -> tuple[float, float]:
    return _padded(min(values, default=0.0), max(values, default=1.0))
