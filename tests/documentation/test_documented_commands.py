"""Every command of every document is run, shortened, by these tests or by one that is named (`documented_commands.py`).

So are the examples in the help of every command and on the page of every method, and commands within sentences. Lines
of other programs (make, pip, python, docker) have tests of their own, or a reason why no test can run them.
"""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from documentation.method_pages import command_of
from documented_commands import (
    CASES,
    ELSEWHERE,
    FEDERATIONS,
    HELP,
    MAKE,
    OTHER_PROGRAMS,
    SHORTENED,
    TRAINING,
    Case,
    elsewhere,
    shortened,
)
from documented_files import of_a_user
from documented_mentions import INSTEAD, MENTIONS, STANDS_FOR, spelled_out

from documents import (
    DOCUMENTS,
    ROOT,
    commands_in,
    commands_of_make,
    examples_of_help,
    help_of_commands,
    mentioned_in,
    name_of,
    typed_in,
)
from fewfed.methods.registry import registered
from run_support import called, started

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
pytestmark = pytest.mark.timeout(1200)  # Of a machine that does much else at the same time.
RAY = "docs/ray.md"
PARTS = 4


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The folder of somebody who reads a page, with a home of their own; data sets are in `data`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for kind in ("DATA", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind.lower()))
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path / "data"))
    of_a_user(tmp_path)
    return tmp_path


def typed(case: Case, lines: list[str], folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Type these commands, one after another: each of them ends well."""
    for write in case.files:
        write(folder)
    for number, line in enumerate((*case.before, *lines)):
        for begins, act in case.between.items():
            if line.startswith(begins):
                act(folder)
        if not elsewhere(line):
            ending, out, err = called(capsys, monkeypatch, *shortened(line, case, number))
            assert ending == 0, f"{line}\n{out[-3000:]}\n{err}"  # Doctor says there what is broken.


def stale(case: Case, lines: list[str]) -> list[str]:
    """What a table says of commands that are not there."""
    return [
        *(long for long in case.short if not any(long in line for line in lines)),
        *(begins for begins in (*case.between, *case.again) if not any(line.startswith(begins) for line in lines)),
    ]


def pages() -> list[Any]:
    quick_first = sorted((page for page in CASES if page != RAY), key=lambda page: not CASES[page].slow)
    return [pytest.param(page, marks=pytest.mark.thorough if CASES[page].slow else ()) for page in quick_first]


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_run_as_they_are_typed(
    page: str, reader: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    typed(CASES[page], commands_in(ROOT / page), reader, capsys, monkeypatch)


@pytest.mark.thorough
def test_the_commands_of_the_page_of_ray_run_as_they_are_typed(
    reader: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "engine")
    from ray_runs import running_cluster

    alone, *others = commands_in(ROOT / RAY)
    typed(CASES[RAY], [alone], reader, capsys, monkeypatch)  # It starts a cluster for itself.
    with running_cluster():
        typed(CASES[RAY], others, reader, capsys, monkeypatch)


@pytest.mark.thorough
def test_make_demo_runs(reader: Path, capsys: Capture, monkeypatch: Patch) -> None:
    lines = commands_of_make()
    assert len(lines) == 2
    assert stale(MAKE, lines) == []
    typed(MAKE, lines, reader, capsys, monkeypatch)


@pytest.mark.thorough
def test_the_examples_in_the_help_run_as_they_are_typed(reader: Path, capsys: Capture, monkeypatch: Patch) -> None:
    typed(HELP, examples_of_help(), reader, capsys, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_the_command_on_the_page_of_every_method_runs(
    part: int, reader: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """They are on the documentation site alone, which makes them."""
    typed(Case(), [command_of(name) for name in sorted(registered())[part::PARTS]], reader, capsys, monkeypatch)


def all_mentions() -> set[str]:
    return {line for page in DOCUMENTS for line in mentioned_in(page)}


def mentions() -> list[str]:
    """Commands within sentences that are in no code block, each once, as a reader would type them."""
    in_blocks = {line for page in DOCUMENTS for line in commands_in(page)} | set(examples_of_help())
    return list(dict.fromkeys(spelled_out(line) for line in sorted(all_mentions() - in_blocks)))


@pytest.mark.thorough
def test_commands_within_sentences_run(reader: Path, capsys: Capture, monkeypatch: Patch) -> None:
    typed(MENTIONS, mentions(), reader, capsys, monkeypatch)


def test_watch_serves_its_page_until_it_is_stopped(reader: Path, capsys: Capture, monkeypatch: Patch) -> None:
    (line,) = {line for page in CASES for line in commands_in(ROOT / page) if line.startswith("fewfed watch")}
    typed(Case(), list(CASES["docs/watch.md"].before), reader, capsys, monkeypatch)
    program = started(*line.split()[1:], "--port", "0", cwd=reader)  # The usual one may be taken.
    try:
        assert program.stdout is not None
        said = program.stdout.readline()
        assert "Ctrl-C ends it" in said
        with urllib.request.urlopen(said.split(" ")[0], timeout=60) as answer:
            assert b"</html>" in answer.read()
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=120)
        assert (program.returncode, err) == (0, "")
    finally:
        program.kill()
        program.wait()


def test_every_page_with_commands_is_in_the_tables() -> None:
    found = {name_of(page) for page in DOCUMENTS if commands_in(page)}
    assert found == {*CASES, *FEDERATIONS}


@pytest.mark.parametrize("page", CASES)
def test_the_tables_speak_of_commands_that_are_on_their_page(page: str) -> None:
    assert stale(CASES[page], [*CASES[page].before, *commands_in(ROOT / page)]) == []


def test_the_tables_of_help_and_sentences_speak_of_commands_that_are_there() -> None:
    assert stale(HELP, [*HELP.before, *examples_of_help()]) == []
    assert stale(MENTIONS, [*MENTIONS.before, *mentions()]) == []
    assert set(INSTEAD) <= all_mentions()
    rest = all_mentions() - set(INSTEAD)
    assert [words for words in STANDS_FOR if not any(words in line for line in rest)] == []
    names = {name.removeprefix("fewfed ") for name in help_of_commands()}
    assert {*SHORTENED, *TRAINING} <= names


def test_what_is_run_elsewhere_is_typed_somewhere_and_the_test_is_there() -> None:
    lines = {line for page in DOCUMENTS for line in commands_in(page)} | set(examples_of_help())
    others = {line for page in DOCUMENTS for line in typed_in(page)} - lines
    for entries, known in ((ELSEWHERE, lines | {*mentions()}), (OTHER_PROGRAMS, others)):
        assert [each.begins for each in entries if not any(line.startswith(each.begins) for line in known)] == []
        assert [each.begins for each in entries if not (each.why if not each.test else is_a_test(each.test))] == []
    begins = tuple(each.begins for each in OTHER_PROGRAMS)
    assert [line for line in others if not line.startswith(begins)] == []


def is_a_test(named: str) -> bool:
    file, _, name = named.partition("::")
    return (ROOT / file).is_file() and f"\ndef {name}(" in (ROOT / file).read_text()


def test_targets_of_make_and_files_of_python_that_sentences_name_are_there() -> None:
    rules = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", rules, re.M)) | {
        f"example-{each.parent.name}" for each in ROOT.glob("examples/*/run.sh")
    }
    text = "\n".join(page.read_text() for page in DOCUMENTS if page.name != "CHANGELOG.md")
    assert set(re.findall(r"`make ([a-z-]+)[^`]*`", text)) <= targets
    assert [file for file in re.findall(r"`python (\w\S*\.py)", text) if not (ROOT / file).is_file()] == []
