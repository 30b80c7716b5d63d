"""The live page in a real browser, while runs go on in other processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live_runs import Writer, at_work, comparison

from browsing import Visit, chromium, needs_browser, visiting
from fewfed.runs.folder import METRICS
from run_support import forked, killed, started

pytestmark = needs_browser()
SHOTS = Path(__file__).resolve().parents[3] / "shots"
PATIENCE = 60.0
SMALL = ("--network", "mlp", "--clients", "6", "--cohort", "3", "--epochs", "1")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@contextmanager
def watching(*folders: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a user starts it; its address."""
    program = started("watch", *map(str, folders), "--port", str(port), cwd=folders[0].parent)
    try:
        assert program.stdout is not None
        said = program.stdout.readline()
        assert "Ctrl-C ends it" in said, said + (program.stderr.read() if program.stderr else "")
        yield said.split(" ")[0], program
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGINT)
            assert program.wait(20) == 0


def text(visit: Visit, id: str) -> str:
    return str(visit.page.evaluate("(id) => document.getElementById(id).innerText", id))


def until(visit: Visit, script: str) -> Any:
    """Wait for something to hold on the page; its policy lets no test wait inside it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := visit.page.evaluate(script)):
        assert time.monotonic() < deadline, f"waited in vain for {script}: {text(visit, 'live')}"
        time.sleep(0.05)
    return found


def until_sum(visit: Visit, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not re.search(pattern, found := text(visit, "live-sum")):
        assert time.monotonic() < deadline, f"waited in vain for {pattern}: {found}"
        time.sleep(0.05)
    return found


def assert_quiet(visit: Visit, but: str = "") -> None:
    assert visit.outside == []
    assert [line for line in visit.complaints if not but or but not in line] == []


def test_the_page_follows_a_real_comparison_without_being_loaded_again(browser: Any, tmp_path: Path) -> None:
    root = tmp_path / "compared"
    with watching(root) as (address, _), visiting(browser, address) as visit:
        until_sum(visit, "^No run yet in")
        visit.page.evaluate("window.since = 'the first load'")
        arguments = ("compare", "fedavg", "fedprox", "--seeds", "3", "--rounds", "60", "--jobs", "2", *SMALL)
        run = started(*arguments, "--out", str(root), cwd=tmp_path)
        try:
            until_sum(visit, r"of 6 runs finished.*\d running.*\d waiting")
            seen = {tuple(re.findall(r"(\d+) of (\d+) rounds", until_sum(visit, "rounds"))[0])}
            until(visit, "document.querySelectorAll('.plot canvas').length > 0")
            until(visit, "document.querySelectorAll('#live-runs tbody tr').length > 0")
            visit.keep(SHOTS / "live-compare.png")
            until_sum(visit, "left")
            assert run.wait(PATIENCE) == 0, run.stderr.read() if run.stderr else ""
        finally:
            run.kill()
            run.communicate()
        said = until_sum(visit, "^6 of 6 runs finished; 360 of 360 rounds")
        seen.add(tuple(re.findall(r"(\d+) of (\d+) rounds", said)[0]))
        assert len(seen) == 2
        until(visit, "document.getElementById('main').textContent.includes('all finished')")
        assert visit.page.evaluate("window.since") == "the first load"
        assert visit.page.evaluate("document.getElementById('live-runs').hidden")
        assert_quiet(visit)


def served(tmp_path: Path) -> list[Writer]:
    """A comparison on its way: one run finished, two going on, one that stopped, others to come."""
    cells = [(method, seed) for method in ("fedavg", "flea") for seed in range(4)]
    folders = comparison(tmp_path / "runs", cells)
    runs = [Writer(folder, method, seed) for folder, (method, seed) in zip(folders[:4], cells, strict=False)]
    return [runs[0].finish(), runs[1].go_on(3), runs[2].go_on(6), runs[3].go_on(4)]


@pytest.fixture(scope="module")
def going_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of such a comparison."""
    place: Path = tmp_path_factory.mktemp("served")
    runs = served(place)
    with at_work(runs[2].folder, runs[3].folder), watching(place / "runs") as (address, _):
        yield address


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_it_fits_windows_and_light(browser: Any, going_on: str, width: int, scheme: Any) -> None:
    with visiting(browser, going_on, width=width, height=800, scheme=scheme) as visit:
        until_sum(visit, r"^1 of 8 runs finished, 2 running, 4 waiting, 1 stopped; 23 of 80 rounds; about .* left\.$")
        until(visit, "document.querySelectorAll('.plot canvas').length > 0")
        assert visit.overflow <= 0
        assert visit.page.title().startswith("28 %, ")
        colours = visit.page.evaluate(
            "['live-sum', 'live-link'].map((id) => getComputedStyle(document.getElementById(id)).color)"
            ".concat(getComputedStyle(document.body).backgroundColor)"
        )
        assert min(contrast(colours[0], colours[2]), contrast(colours[1], colours[2])) >= 4.5
        visit.keep(SHOTS / f"live-{width}-{scheme}.png")
        assert_quiet(visit)


def test_a_long_name_goes_on_in_the_next_line_where_a_method_inside_begins(browser: Any, tmp_path: Path) -> None:
    """On a telephone, and not in the middle of a word."""
    Writer(tmp_path / "runs" / "a", "averaged(flea)").go_on(2)
    with watching(tmp_path / "runs") as (address, _), visiting(browser, address, width=360) as visit:
        until(visit, "document.querySelectorAll('#live-runs tbody th').length > 0")
        line = visit.page.evaluate(
            """() => {
                const text = document.querySelector("#live-runs tbody th").firstChild, range = document.createRange();
                const top = (at) => {
                    range.setStart(text, at);
                    range.setEnd(text, at + 1);
                    return range.getBoundingClientRect().top;
                };
                const letters = [...text.textContent], first = top(0);
                return letters.filter((letter, at) => top(at) === first).join("").replace("\u200b", "");
            }"""
        )
        assert line == "averaged("
        assert_quiet(visit)


def contrast(one: str, other: str) -> float:
    """As the guidelines for accessible pages define it."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_keyboard_reaches_everything_and_an_update_takes_nothing_away(browser: Any, tmp_path: Path) -> None:
    runs = served(tmp_path)
    with (
        at_work(runs[2].folder, runs[3].folder),
        watching(tmp_path / "runs") as (address, _),
        visiting(browser, address, width=800) as visit,
    ):
        until(visit, "!document.getElementById('live-runs').hidden")
        until(visit, "document.querySelectorAll('.plot canvas').length > 0")
        reached = []
        for _ in range(60):
            visit.page.keyboard.press("Tab")
            reached.append(
                visit.page.evaluate("document.activeElement.id || document.activeElement.dataset.line || ''")
            )
            if reached[-1] == "0":
                break
        assert {"live-runs", "0"} <= set(reached)
        # A button of a chart's legend has the focus, and was used: both outlive the next numbers.
        visit.page.keyboard.press("Enter")
        pressed = (
            "document.activeElement.matches('.legend button') && document.activeElement.getAttribute('aria-pressed')"
        )
        assert visit.page.evaluate(pressed) == "false"
        visit.page.evaluate("window.scrollTo(0, 300)")
        before = visit.page.evaluate("document.getElementById('main').innerHTML.length + window.scrollY")
        runs[2].go_on(1)
        until_sum(visit, "24 of 80 rounds")
        until(visit, "document.getElementById('main').textContent.includes('7 of 10')")
        assert visit.page.evaluate(pressed) == "false"
        assert visit.page.evaluate("window.scrollY") == 300
        assert before
        assert_quiet(visit)


def test_what_somebody_marks_is_not_taken_away(browser: Any, tmp_path: Path) -> None:
    runs = served(tmp_path)
    with watching(tmp_path / "runs") as (address, _), visiting(browser, address) as visit:
        until(visit, "document.querySelectorAll('.plot canvas').length > 0")
        visit.page.evaluate("getSelection().selectAllChildren(document.querySelector('main .lead'))")
        marked = visit.page.evaluate("getSelection().toString()")
        runs[1].go_on(2)
        until_sum(visit, "25 of 80 rounds")
        time.sleep(2.5)
        assert visit.page.evaluate("getSelection().toString()") == marked
        visit.page.evaluate("getSelection().removeAllRanges()")
        until(visit, "document.getElementById('main').textContent.includes('5 of 10')")
        assert_quiet(visit)


def test_a_chart_keeps_the_part_that_somebody_looks_at(browser: Any, tmp_path: Path) -> None:
    runs = served(tmp_path)
    with watching(tmp_path / "runs") as (address, _), visiting(browser, address) as visit:
        until(visit, "document.querySelectorAll('.plot canvas').length > 0")
        until(visit, "document.getElementById('main').textContent.includes('3 unfinished')")
        visit.page.evaluate("document.querySelector('.plot').scrollIntoView({ block: 'center', behavior: 'instant' })")
        box = until(visit, "document.querySelector('.plot .u-over').getBoundingClientRect().toJSON()")
        visit.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
        visit.page.mouse.down()
        visit.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=5)
        visit.page.mouse.up()
        readout = "document.querySelector('.readout').innerText"
        visit.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 50)
        shown = int(re.findall(r"round (\d+)", visit.page.evaluate(readout))[0])
        assert shown < 9
        runs[1].go_on(2)
        until(visit, "document.getElementById('main').textContent.includes('5 of 10')")
        visit.page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 51)
        assert int(re.findall(r"round (\d+)", visit.page.evaluate(readout))[0]) == shown
        assert_quiet(visit)


def test_runs_that_appear_are_damaged_or_deleted_are_seen(browser: Any, tmp_path: Path) -> None:
    root = tmp_path / "<img src=x onerror=alert(1)>"
    Writer(root / "one").finish()
    with watching(root) as (address, _), visiting(browser, address) as visit:
        until_sum(visit, "^1 of 1 run finished")
        two = Writer(root / "two", "fedprox").go_on(2)
        until_sum(visit, "^1 of 2 runs finished, 1 stopped")
        until(visit, "document.getElementById('main').textContent.includes('fedprox')")
        lines = (two.folder / METRICS).read_bytes()
        (two.folder / METRICS).write_bytes(lines.replace(b'"lr"', b'"LR"'))
        until_sum(visit, "1 damaged")
        assert "digests do not fit" in text(visit, "live-runs")
        with open(two.folder / METRICS, "wb") as opened:
            opened.write(lines + b'{"round": 3, "half a li')
        until_sum(visit, "^1 of 2 runs finished, 1 stopped; 12 of 20")
        shutil.rmtree(two.folder)
        until_sum(visit, "^1 of 1 run finished")
        shutil.rmtree(root)
        until_sum(visit, "^No run yet")
        until(visit, "document.getElementById('main').textContent.includes('No runs yet')")
        assert_quiet(visit)


def test_a_page_that_was_open_before_there_was_a_run_is_called_by_what_it_shows(browser: Any, tmp_path: Path) -> None:
    with watching(tmp_path / "runs") as (address, _), visiting(browser, address) as visit:
        until(visit, "document.title === 'No runs yet'")
        Writer(tmp_path / "runs" / "one").go_on(2)
        until(visit, "document.title === '20 %, fedavg on digits'")


def federation(folder: Path) -> None:
    """A coordinator and five sites in this process, with rounds that take their time."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy"))
    from federation import Federation, write_digits

    class Slow:
        def after_round(self, view: Any) -> None:
            time.sleep(1.0 if view.clock.round < 2 else 600)

    write_digits(folder)
    made = Federation(folder, rounds=5)
    made.coordinator().run(made.transport, observers=[Slow()])


def test_a_federation_shows_its_sites_and_when_its_coordinator_dies(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    pid = forked(lambda: federation(tmp_path))
    with watching(tmp_path / "run") as (address, _), visiting(browser, address, width=1280) as visit:
        until(visit, "document.getElementById('live-sites').innerText.includes('round 2 of 5')")
        sites = text(visit, "live-sites")
        assert "running: round 2 of 5, 5 of 5 sites connected, as of" in sites
        rows = visit.page.evaluate(
            "Array.from(document.querySelectorAll('#live-sites tbody tr'))"
            ".map((row) => Array.from(row.cells, (one) => one.innerText))"
        )
        assert [row[:3] for row in rows][:2] == [["amber", "yes", "24"], ["birch", "yes", "18"]]
        assert all(float(row[3]) > 0 and float(row[4]) > 0 and row[5].endswith(" %") for row in rows)
        visit.keep(SHOTS / "live-federation.png")
        assert killed(pid)
        until(visit, "document.getElementById('live-sites').innerText.includes('its coordinator is gone')")
        assert "not known" in text(visit, "live-sites")
        until_sum(visit, "^0 of 1 run finished, 1 stopped; 2 of 5 rounds")
        assert_quiet(visit)


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def test_the_page_says_when_its_server_is_gone_and_goes_on_when_it_is_back(browser: Any, tmp_path: Path) -> None:
    runs, port = served(tmp_path), free_port()
    with watching(tmp_path / "runs", port=port) as (address, program), visiting(browser, address) as visit:
        until_sum(visit, "^1 of 8 runs finished")
        visit.page.evaluate("window.since = 'the first load'")
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0
        until(visit, "document.getElementById('live-link').matches('.lost')")
        assert "does not answer" in text(visit, "live-link")
        visit.keep(SHOTS / "live-lost.png")
        runs[1].go_on(2)
        with watching(tmp_path / "runs", port=port):
            until(visit, "!document.getElementById('live-link').matches('.lost')")
            until_sum(visit, "25 of 80 rounds")
            assert visit.page.evaluate("window.since") == "the first load"
        assert_quiet(visit, but="ERR_CONNECTION_REFUSED")


def test_ctrl_c_ends_it_and_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with watching(tmp_path) as (address, program):
        port = address.rstrip("/").rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, "-m", "fewfed", "watch", str(tmp_path), "--port", port], capture_output=True, text=True
        )
        assert second.returncode == 2
        assert re.fullmatch(
            r"error: port \d+ cannot be had \(Address already in use\): choose another .*\n", second.stderr
        )
        with socket.create_connection(("127.0.0.1", int(port))):  # Somebody who hangs keeps nobody from ending it.
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=20)
        assert (program.returncode, out, err) == (0, "", "")


def test_what_cannot_be_watched_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "fewfed", "watch", "file"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: 'file' is no folder: expected a run folder")


def test_two_watchers_and_many_writers(browser: Any, tmp_path: Path) -> None:
    """Several processes append to many runs at once; both pages come to the same end."""
    root = tmp_path / "runs"
    runs = [Writer(root / f"run{number:02}", seed=number, rounds=30) for number in range(24)]
    with watching(root) as (one, _), watching(root) as (other, _):
        children = []
        for part in range(4):
            if (pid := os.fork()) == 0:
                try:
                    for _ in range(30):
                        for run in runs[part::4]:
                            run.go_on(1)
                            time.sleep(0.002)
                    for run in runs[part::4]:
                        run.finish()
                finally:
                    os._exit(0)
            children.append(pid)
        with visiting(browser, one) as visit, visiting(browser, other) as second:
            damaged = 0
            for _ in range(20):
                damaged += "damaged" in text(visit, "live-sum")
                time.sleep(0.05)
            for pid in children:
                assert os.waitpid(pid, 0)[1] == 0
            for each in (visit, second):
                until_sum(each, "^24 of 24 runs finished; 720 of 720 rounds")
                assert_quiet(each)
            assert damaged == 0
