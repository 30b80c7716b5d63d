"""What a person sees while runs go on, and nothing where nobody looks."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fewfed import compare, resume, run
from fewfed.report.progress import Bar, Line, Silence, display, in_notebook
from run_support import SHORT, small

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


class ZMQInteractiveShell:
    """What the shell of a notebook's kernel is called."""


@pytest.fixture
def notebook(monkeypatch: Patch) -> None:
    fake: Any = ModuleType("IPython")
    fake.get_ipython = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", fake)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(text: str) -> list[str]:
    """What stands on the lines of a screen after all the writing over."""
    shown = []
    for line in text.split("\n"):
        now = ""
        for part in line.split("\r"):
            now = part + now[len(part) :]
        shown.append(now.rstrip())
    return shown


def test_a_line_is_written_over_and_lines_that_stay_stay() -> None:
    stream = io.StringIO()
    with Line("flea", 3, stream) as line:
        line.show(1, "a long remark about the first round")
        line.tell("left out: client 2")
        line.show(3, "short")
    assert screen(stream.getvalue()) == ["left out: client 2", "flea: 3/3  short", ""]


def test_a_line_does_not_change_faster_than_anybody_reads() -> None:
    stream = io.StringIO()
    with Line("flea", 1000, stream) as line:
        for done in range(1, 1001):
            line.show(done, "")
    assert stream.getvalue().count("\r") < 20
    assert screen(stream.getvalue())[0] == "flea: 1000/1000"


def test_a_line_that_showed_nothing_prints_nothing() -> None:
    stream = io.StringIO()
    with Line("flea", 3, stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("wanted", "kind"), [(None, Silence), (False, Silence), (True, Line)])
def test_without_a_terminal_only_who_asks_for_it_sees_something(wanted: bool | None, kind: type) -> None:
    with display("flea", 3, wanted) as shown:
        assert isinstance(shown, kind)


@pytest.mark.parametrize(("wanted", "kind"), [(None, Bar), (False, Silence), (True, Bar)])
def test_a_terminal_has_a_bar(wanted: bool | None, kind: type, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with display("fl[ea]", 3, wanted) as shown:
        assert isinstance(shown, kind)
        shown.show(2, "more [/] or less")
        shown.tell("a [line]")


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(("wanted", "kind"), [(None, Line), (False, Silence), (True, Line)])
def test_a_notebook_has_a_line(wanted: bool | None, kind: type) -> None:
    assert in_notebook()
    with display("flea", 3, wanted) as shown:
        assert isinstance(shown, kind)


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_other_shells_are_no_notebook(shell: object, monkeypatch: Patch) -> None:
    fake: Any = ModuleType("IPython")
    fake.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert not in_notebook()


@pytest.mark.parametrize("stream", [None, SimpleNamespace(isatty=None), object()])
def test_a_program_without_standard_error_has_no_terminal(stream: Any, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with display("flea", 3) as shown:
            found = type(shown)
    assert found is Silence


def test_runs_of_a_program_print_nothing_unless_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    resume(tmp_path / "run")
    compare(["fedavg"], small(rounds=1), SHORT, out=tmp_path / "both")
    assert capfd.readouterr() == ("", "")
    run("fedavg", small(rounds=2), SHORT, out=tmp_path / "told", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert screen(err)[0].startswith("fedavg: 2/2  accuracy ")


@pytest.mark.usefixtures("notebook")
def test_in_a_notebook_a_comparison_shows_one_line(tmp_path: Path, capsys: Capture) -> None:
    compare(["fedavg"], small(rounds=1), SHORT, seeds=2, out=tmp_path / "both")
    out, err = capsys.readouterr()
    assert err == ""
    assert screen(out)[0].startswith("2 runs: 2/2")
