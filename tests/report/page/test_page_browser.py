"""The report in a real browser: what is drawn, what is asked for, who can read and reach it. Screenshots are kept in
shots/ for people to look at."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from browsing import Visit, chromium, needs_browser, visiting
from fewfed.report.page.contents import contents
from fewfed.report.page.render import render, update
from fewfed.report.page.write import write_report
from fewfed.report.survey import survey
from report_support import rising, write_run

pytestmark = needs_browser()

SHOTS = Path(__file__).parents[3] / "shots"
EVIL = "</script><img src=x onerror=alert(1)>\"'"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

CONTRAST = """() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return Array.from(probe.getImageData(0, 0, 1, 1).data);
  };
  const linear = (c) => c <= .04045 * 255 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4;
  const light = (rgb) => .2126 * linear(rgb[0]) + .7152 * linear(rgb[1]) + .0722 * linear(rgb[2]);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), one = walker.currentNode.parentElement;
    if (!text || !one.getClientRects().length || ["SCRIPT", "STYLE"].includes(one.tagName)) continue;
    const style = getComputedStyle(one), front = rgba(one instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(front), light(behind(one))].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), text.slice(0, 40)]);
  }
  return found;
}"""
"""The contrast of every text that is shown with what is behind it, by WCAG 2's formula."""

INKED = """(canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = {};
  for (let at = 0; at < data.length; at += 4) {
    const colour = data.slice(at, at + 3).join();
    if (data[at + 3] > 200) seen[colour] = (seen[colour] || 0) + 1;
  }
  return seen;
}"""
"""How many pixels of a canvas have each colour."""

COLOURS = """() => [0, 1, 2, 3].map((n) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue("--c" + n).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)).join();
})"""
"""What the first four lines are drawn with."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything a report can have."""
    root: Path = tmp_path_factory.mktemp("runs")
    counts = np.random.default_rng(0).integers(0, 5, (30, 6)).tolist()
    stages = {stage: {"train": 1.0, "test": 2.0} for stage in ("before", "local", "aggregated")}
    common: dict[str, Any] = {
        "counts": counts, "classes": ("cat", "dog", "owl", "fox", EVIL, "x" * 80), "sites": ("north", "süd", EVIL),
        "record": {"davies_bouldin": {"round": 1, **stages},
                   "beside": {"unaveraged": {"accuracy": 0.5}, EVIL: {"accuracy": 0.4}}},
    }  # fmt: skip
    for place, method in enumerate(("fedavg", "fedprox", "flea")):
        for seed in range(3):
            leak = {"round": 20, "phase": "share", "attacker": "ridge", "r2": 0.9, "reidentified": 0.8, "chance": 0.01,
                    "rows": 9, "among": 100, "held": 10}  # fmt: skip
            more = {"leak": leak} if method == "flea" else {}
            curve = rising(20, 0.6 + 0.1 * place, 10 * place + seed)
            write_run(root / f"{method}{seed}", method, seed, curve, result=more, **common)
    write_run(root / "going", "moon", 0, rising(9, 0.5), finished=False, values={"rounds": 20}, **common)
    write_run(root / "broken", "moon", 1, rising(20, 0.5), **common)
    (root / "broken" / "metrics.jsonl").write_bytes(b"{}\n")
    measure = {"what": EVIL, "value": 0.5, "low": 0.4, "high": 0.6, "chance": 0.1, "rows": 9}
    finding = {"attack": "reconstruct", "variant": EVIL, "round": 1, "phase": "share", "note": "",
               "threat": {"who": "the server"}, "measures": [measure]}  # fmt: skip
    (root / "flea0" / "attacks").mkdir()
    (root / "flea0" / "attacks" / "attacks.json").write_text(json.dumps({"findings": [finding], "does_not_apply": []}))
    points = np.random.default_rng(0).normal(size=(2, 40)).tolist()
    panel = {"name": "before", "x": points[0], "y": points[1], "davies_bouldin": 1.5}
    mapped = {"labels": [n % 10 for n in range(40)], "panels": [panel, {**panel, "name": EVIL}]}
    (root / "flea0" / "feature_map.json").write_text(json.dumps(mapped))
    return write_report([root]).page


def is_fine(visit: Visit) -> bool:
    return not visit.complaints and not visit.outside and visit.overflow <= 0


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [360, 768, 1280, 2200])
def test_every_window_shows_all_of_it_without_a_complaint(
    browser: Any, page: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    with visiting(browser, page, width=width, scheme=scheme) as visit:
        visit.page.wait_for_selector("canvas")
        visit.keep(SHOTS / f"report-{width}-{scheme}.png")
        assert is_fine(visit), (visit.complaints, visit.outside, visit.overflow)
        assert visit.page.locator("canvas").count() == 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_charts_have_the_lines_of_all_methods_in_colours_that_differ(
    browser: Any, page: Path, scheme: Literal["light", "dark"]
) -> None:
    with visiting(browser, page, scheme=scheme) as visit:
        canvas = visit.page.locator("canvas").first
        wanted = visit.page.evaluate(COLOURS)
        inked = {tuple(map(int, colour.split(","))): count for colour, count in canvas.evaluate(INKED).items()}
        for colour in wanted:  # Edges of a line are mixed with what is behind it.
            near = [
                sum(abs(a - b) for a, b in zip(one, map(int, colour.split(",")), strict=True)) < 40 for one in inked
            ]
            assert sum(count for count, is_near in zip(inked.values(), near, strict=True) if is_near) > 100, colour


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Any, page: Path, scheme: Literal["light", "dark"]
) -> None:
    with visiting(browser, page, scheme=scheme) as visit:
        visit.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        found = visit.page.evaluate(CONTRAST)
        assert len(found) > 100
        assert [pair for pair in found if pair[0] < 4.5] == []


def test_lines_and_single_seeds_are_switched_by_the_keyboard_alone(browser: Any, page: Path) -> None:
    with visiting(browser, page) as visit:
        view = visit.page
        before = view.locator("canvas").first.evaluate(INKED)
        reached = set()
        for _ in range(80):
            view.keyboard.press("Tab")
            reached.add(view.evaluate("document.activeElement.outerHTML.slice(0, 60)"))
            if view.evaluate("document.activeElement.matches('figure [data-single]')"):
                break
        view.keyboard.press("Enter")
        button = view.locator("[data-single]").first
        assert button.get_attribute("aria-pressed") == "true"
        assert view.locator("canvas").first.evaluate(INKED) != before
        line = view.locator("[data-line='0']").first
        line.focus()
        view.keyboard.press("Space")
        assert line.get_attribute("aria-pressed") == "false"
        assert any('class="plot"' in one for one in reached)
        assert any("<a " in one or "data-line" in one for one in reached)
        assert is_fine(visit)


def test_arrows_on_a_chart_read_out_its_numbers(browser: Any, page: Path) -> None:
    with visiting(browser, page) as visit:
        visit.page.locator(".plot").first.focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.keyboard.press("ArrowRight")
        visit.page.wait_for_function("document.querySelector('.readout').textContent.startsWith('round 2: fedavg ')")
        visit.page.keyboard.press("ArrowLeft")
        visit.page.wait_for_function("document.querySelector('.readout').textContent.startsWith('round 1: ')")


def test_tables_are_sorted_by_a_press_on_their_heads(browser: Any, page: Path) -> None:
    with visiting(browser, page) as visit:
        names = lambda: visit.page.locator("#t-results tbody th").all_inner_texts()  # noqa: E731
        visit.page.locator("#t-results thead button", has_text="last 10").click()
        assert names()[0] == "flea"
        visit.page.locator("#t-results thead button", has_text="last 10").click()
        assert names()[-1] == "flea"


def test_a_print_has_figures_instead_of_canvases_and_the_colours_of_paper(browser: Any, page: Path) -> None:
    with visiting(browser, page, scheme="dark") as visit:
        visit.page.emulate_media(media="print")
        assert not visit.page.locator("canvas").first.is_visible()
        assert visit.page.locator(".still svg").first.is_visible()
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert [pair for pair in visit.page.evaluate(CONTRAST) if pair[0] < 4.5] == []
        SHOTS.mkdir(exist_ok=True)
        printed = visit.page.pdf(path=str(SHOTS / "report.pdf"), format="A4")
        assert printed.startswith(b"%PDF")


A4 = 718
"""Pixels across a sheet of paper, less its margins."""


def test_tables_fit_on_paper_however_many_columns_they_have(browser: Any, page: Path, tmp_path: Path) -> None:
    methods = ("fedavg", "fedprox", "fedmix", "flea", "feddecorr", "fedlc", "fedntd", "moon", "scaffold", "fedyogi")
    for method in methods:
        write_run(tmp_path / method, method, classes=[f"class number {number}" for number in range(40)],
                  counts=[[1] * 40, [2] * 40], sites=("north", "south"))  # fmt: skip
    for number, one in enumerate((page, write_report([tmp_path], tmp_path / "page.html").page)):
        with visiting(browser, one, width=A4) as visit:
            visit.page.emulate_media(media="print")
            assert visit.overflow <= 0
            head, cell = (visit.page.locator(f"#t-results {kind}").first for kind in ("thead th", "td"))
            sizes = [float(each.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) for each in (head, cell)]
            assert sizes[0] <= sizes[1]
            visit.keep(SHOTS / f"report-paper-{number}.png")


def test_what_is_folded_is_printed_and_folded_again(browser: Any, tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox", "fedmix", "flea", "feddecorr", "fedlc", "fedntd", "moon", "scaffold"):
        write_run(tmp_path / method, method)
    with visiting(browser, write_report([tmp_path], tmp_path / "page.html").page) as visit:
        opened = "Array.from(document.querySelectorAll('main details')).map((one) => [one.id, one.open])"
        before = visit.page.evaluate(opened)
        assert before == [["findings", False], ["all-runs", False]]
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert visit.page.evaluate(opened) == [["findings", True], ["all-runs", False]]
        visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert visit.page.evaluate(opened) == before


def test_without_a_script_everything_can_be_read(browser: Any, page: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    view = context.new_page()
    view.goto(page.as_uri())
    assert view.locator(".still svg").first.is_visible()
    assert "flea beats fedavg by" in view.locator("main").inner_text()
    assert not view.locator(".legend").first.is_visible()
    context.close()


def test_names_from_anybody_are_text_in_the_browser_too(browser: Any, page: Path) -> None:
    with visiting(browser, page) as visit:
        assert visit.page.locator("img").count() == 0
        assert EVIL in visit.page.locator("#t-sites").inner_text()
        assert EVIL in visit.page.locator("#t-beside").inner_text()
        assert is_fine(visit)


def test_the_policy_stops_what_is_not_the_pages_own(browser: Any, page: Path) -> None:
    with visiting(browser, page) as visit:
        ran = visit.page.evaluate(
            """() => { const one = document.createElement("script"); one.textContent = "window.foreign = 1";
            document.body.append(one); return window.foreign; }"""
        )
        assert ran is None
        assert any("Content Security Policy" in line for line in visit.complaints)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        return


def test_a_live_page_shows_what_is_new_and_keeps_what_a_reader_chose(browser: Any, tmp_path: Path) -> None:
    runs, place = tmp_path / "runs", tmp_path / "served"
    place.mkdir()
    for seed in range(2):
        write_run(runs / f"a{seed}", "fedavg", seed)
    found = contents(survey([runs]))
    (place / "index.html").write_text(render(found, live=True))
    (place / "data.json").write_text(json.dumps(update(found)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with visiting(browser, f"http://127.0.0.1:{server.server_address[1]}/index.html") as visit:
            visit.page.locator("[data-line='0']").first.click()
            write_run(runs / "b0", "flea", 0, [0.6, 0.7, 0.8])
            (place / "data.json").write_text(json.dumps(update(contents(survey([runs])))))
            visit.page.wait_for_selector("text=flea is ahead of fedavg")
            visit.page.wait_for_selector("canvas")
            assert visit.page.locator("[data-line='0']").first.get_attribute("aria-pressed") == "false"
            assert is_fine(visit), (visit.complaints, visit.outside)
    finally:
        server.shutdown()
        server.server_close()


def test_a_line_that_was_switched_off_stays_off_while_its_run_goes_on(browser: Any, tmp_path: Path) -> None:
    def drawn(rounds: int) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        for method in ("fedavg", "flea"):
            write_run(tmp_path / "runs" / method, method, 0, rising(rounds, 0.7), finished=False, values={"rounds": 9})
        return update(contents(survey([tmp_path / "runs"])))

    drawn(2)
    page = write_report([tmp_path / "runs"], tmp_path / "page.html").page
    with visiting(browser, page) as visit:
        visit.page.locator("[data-line='0']").first.click()
        visit.page.evaluate("(fresh) => window.fewfedPage.show(fresh)", drawn(3))
        first, second = (visit.page.locator(f"[data-line='{number}']").first for number in range(2))
        assert "unfinished 3/9" in first.inner_text()
        assert [one.get_attribute("aria-pressed") for one in (first, second)] == ["false", "true"]


def test_two_hundred_runs_are_a_small_page_in_little_time(browser: Any, tmp_path: Path) -> None:
    methods = ("fedavg", "fedprox", "fedmix", "flea", "feddecorr", "fedlc", "fedntd", "moon", "scaffold", "fedyogi")
    for place, method in enumerate(methods):
        for seed in range(20):
            write_run(tmp_path / f"{method}{seed}", method, seed, rising(60, 0.5 + 0.02 * place, seed),
                      counts=np.ones((60, 10), int).tolist(), classes=[str(n) for n in range(10)])  # fmt: skip
    began = time.perf_counter()
    made = write_report([tmp_path])
    assert time.perf_counter() - began < 20
    assert made.page.stat().st_size < 3_000_000
    assert len(made.contents.runs.rows) == 200
    with visiting(browser, made.page) as visit:
        visit.page.wait_for_selector("canvas")
        visit.keep(SHOTS / "report-200.png")
        assert is_fine(visit)


EDGE = """(canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, 2, canvas.height).data;
  return data.filter((value, at) => at % 4 === 3 && value > 0).length;
}"""
"""Pixels with anything on them at the left edge of a canvas."""


@pytest.mark.parametrize("end", [2e9, 3e-7, 0.7])
def test_numbers_of_any_size_are_whole_beside_a_chart(browser: Any, tmp_path: Path, end: float) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [end / 2, end], metric="loss")
    write_run(tmp_path / "b", "flea", 0, [end, end / 3], metric="loss")
    with visiting(browser, write_report([tmp_path], tmp_path / "page.html").page) as visit:
        assert visit.page.locator("canvas").first.evaluate(EDGE) == 0
        visit.keep(SHOTS / f"report-numbers-{end:g}.png")


@pytest.mark.parametrize("width", [360, 768])
def test_a_long_word_widens_no_page(browser: Any, tmp_path: Path, width: int) -> None:
    """Below a chart the names of methods stand again, and of several tasks the data's name heads each."""
    for number in range(2):
        table = tmp_path / f"{'wide_name_of_a_table_' * 4}{number}.npz"
        write_run(tmp_path / f"{number}", "fedavg", 0, label="m" * 110, values={"data": str(table)})
    with visiting(browser, write_report([tmp_path]).page, width=width) as visit:
        assert visit.overflow <= 0


def test_settings_of_many_rows_leave_room_for_the_numbers(browser: Any, tmp_path: Path) -> None:
    for number in range(4):
        values = {"mu": number / 10, "lr": 0.001 * (1 + number), "batch": 16 + number, "epochs": 1 + number,
                  "weight_decay": number / 100, "momentum": number / 10}  # fmt: skip
        write_run(tmp_path / f"a{number}", "fedprox", 0, values=values)
    with visiting(browser, write_report([tmp_path], tmp_path / "page.html").page) as visit:
        beyond = visit.page.locator(".scroll").first.evaluate("one => one.scrollWidth - one.clientWidth")
        assert beyond <= 0


def test_the_switch_to_single_seeds_is_seen_however_many_lines_there_are(browser: Any, tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox", "fedmix", "flea", "feddecorr", "fedlc", "fedntd", "moon", "scaffold"):
        for seed in range(2):
            write_run(tmp_path / f"{method}{seed}", method, seed, label=f"averaged({method})")
    page = write_report([tmp_path], tmp_path / "page.html").page
    with visiting(browser, page, width=360) as visit:
        around = visit.page.evaluate(
            """() => { const found = []; let one = document.querySelector("[data-single]").parentElement;
            for (; one.nodeName !== "FIGURE"; one = one.parentElement) found.push(getComputedStyle(one).overflowY);
            return found; }"""
        )
        assert set(around) == {"visible"}  # What scrolls by itself would hide it behind the names.
        assert visit.page.locator(".names").first.evaluate("one => one.scrollHeight > one.clientHeight")
        visit.keep(SHOTS / "report-many-lines-360.png")


NAMES = (
    *(
        "W" * 60,
        "@%&<=>+" * 9,
        "MOON(MOON(MOON(MOON(FLEA))))-MMMMMMMM",
        "Щ" * 30,
        "患者中心第一病院の長い名前を持つ病院",
    ),
    *("i" * 90, "a\u0301" * 40, "flea"),
)
FIGURES = """() => Array.from(document.querySelectorAll("figure svg[viewBox][role]"), (figure) => {
  figure.parentElement.hidden = false;
  const of = (node) => { const at = node.getBoundingClientRect(); return [at.left, at.top, at.right, at.bottom]; };
  const texts = Array.from(figure.querySelectorAll("text"), (text) => [text.textContent, ...of(text)]);
  return { whole: of(figure), texts };
})"""


def overlap(one: list[float], other: list[float]) -> bool:
    """By more than letters have around them."""
    wide, high = (min(one[end], other[end]) - max(one[end - 2], other[end - 2]) for end in (2, 3))
    return wide > 1 and high > 4


def test_names_of_any_letters_are_whole_in_figures_and_not_over_each_other(browser: Any, tmp_path: Path) -> None:
    """Wide letters need twice the room of the usual ones: what is measured is what the browser has drawn."""
    reading = {"grouping": "qua:2", "sites": [{"name": name, "train": 8} for name in NAMES]}
    more: dict[str, Any] = {"classes": NAMES, "counts": [[1] * 8] * 8, "split": {"reading": reading}}
    for place, name in enumerate(NAMES):
        for seed in range(2):
            curve = rising(12, 0.5 + place / 50, 7 * place + seed)
            write_run(tmp_path / f"{place}-{seed}", "fedavg", seed, curve, label=name, **more)
    made = write_report([tmp_path])
    with visiting(browser, made.page, width=1280) as visit:
        visit.keep(SHOTS / "report-names.png")
        figures = visit.page.evaluate(FIGURES)
        assert len(figures) >= 4
        for figure in figures:
            left, top, right, bottom = figure["whole"]
            for text, *box in figure["texts"]:
                inside = box[0] >= left - 1 and box[1] >= top - 1 and box[2] <= right + 1 and box[3] <= bottom + 1
                assert inside, (text, box, figure["whole"])
            named = [box for text, *box in figure["texts"] if len(text) > 3]
            over = [(one, other) for place, one in enumerate(named) for other in named[:place] if overlap(one, other)]
            assert not over
        assert any(text == "flea" for figure in figures for text, *_ in figure["texts"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_table_that_goes_on_at_the_right_is_seen_to(
    browser: Any, page: Path, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    """Cut off between two columns it looks whole, and scrollbars of telephones hide."""
    from PIL import Image

    shaded = {}
    for width in (360, 1280):
        with visiting(browser, page, width=width, scheme=scheme) as visit:
            part = visit.page.locator(".scroll:has(#t-results)").first
            for place in ("start", "end"):
                part.evaluate("(one, end) => { one.scrollLeft = end ? one.scrollWidth : 0; }", place == "end")
                part.screenshot(path=str(tmp_path / "part.png"))
                with Image.open(tmp_path / "part.png") as picture:
                    grey = np.asarray(picture.convert("L"), dtype=float)[4:12]  # Above the letters of the head.
                shaded[width, place] = [abs(float(edge.mean()) - float(np.median(grey))) > 20
                                        for edge in (grey[:, 1], grey[:, -2])]  # fmt: skip
    assert shaded == {
        (360, "start"): [False, True], (360, "end"): [True, False],
        (1280, "start"): [False, False], (1280, "end"): [False, False],
    }  # fmt: skip
