"""Nothing a command runs into ends in a traceback: a sentence, an exit code, and for faults of fewfed a file."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fewfed
from cli.forked_command import start
from fewfed import __version__
from fewfed.runs import cells
from run_support import SMALL, called

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

INSIDE = Path(fewfed.__file__).parent / "engine" / "made_up.py"


def command(source: str, file: Path = INSIDE) -> Callable[..., Any]:
    """A command that runs this source as if it stood in a file: of this package, unless another is given."""
    names: dict[str, Any] = {}
    exec(compile(f"import sys\ndef app(standalone_mode):\n    {source}\n", str(file), "exec"), names)
    found: Callable[..., Any] = names["app"]
    return found


@pytest.fixture
def runs(capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a command made of some source in an empty folder: exit code, standard output, standard error."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(source: str, file: Path = INSIDE) -> tuple[int, str, str]:
        monkeypatch.setattr("fewfed.cli.app.app", command(source, file))
        return called(capsys, monkeypatch, "run", "fedavg", "--seed", "7")

    return run


Runs = Callable[..., tuple[int, str, str]]


def reports(folder: Path) -> list[Path]:
    return sorted(folder.glob("fewfed-error-*.txt"))


def test_what_is_unforeseen_is_a_sentence_a_file_and_an_exit_code_of_its_own(runs: Runs, monkeypatch: Patch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    code, out, err = runs("return {}['missing']")
    (report,) = reports(Path.cwd())
    assert (code, out) == (70, "")
    assert err == (
        f"internal error: KeyError: 'missing'; this is a fault of fewfed, please report it with the file {report}\n"
    )
    written = report.read_text()
    assert f"fewfed {__version__}" in written
    assert "command: fewfed run fedavg --seed 7\n" in written
    assert "torch 2" in written
    assert 'made_up.py", line 3, in app' in written
    assert written.endswith("KeyError: 'missing'\n")
    assert "hunter2" not in written
    assert "MY_TOKEN" not in written
    assert stat.S_IMODE(report.stat().st_mode) == 0o600


def test_reports_do_not_overwrite_each_other(runs: Runs, monkeypatch: Patch) -> None:
    monkeypatch.setattr("time.strftime", lambda *given: "now")
    for _ in range(3):
        runs("return {}['missing']")
    assert [report.name for report in reports(Path.cwd())] == [
        "fewfed-error-now-1.txt", "fewfed-error-now-2.txt", "fewfed-error-now.txt",
    ]  # fmt: skip


def test_a_report_goes_where_it_can_be_written(runs: Runs, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "here").rmdir()  # The folder this process is in: nothing can be made there any more.
    code, _, err = runs("return {}['missing']")
    (report,) = reports(tmp_path / "elsewhere")
    assert code == 70
    assert err.endswith(f"with the file {report}\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    code, _, err = runs("return {}['missing']")
    assert code == 70
    assert "Traceback" in err
    assert err.endswith("please report it with the lines above\n")


MINE = Path("mine.py")

ENDINGS: dict[str, tuple[str, Path, int, str]] = {
    "an assertion": ("assert False, 'so'", INSIDE, 70, "internal error: AssertionError: so"),
    "recursion without end": ("return app(standalone_mode)", INSIDE, 70, "internal error: RecursionError: "),
    "the end of the program": ("sys.exit(0)", INSIDE, 70, "internal error: SystemExit: 0"),
    "no exception at all": ("raise BaseException('what')", INSIDE, 70, "internal error: BaseException: what"),
    "a bad descriptor": ("import os; os.close(-1)", INSIDE, 70, "internal error: OSError: [Errno 9]"),
    "many lines": ("raise ValueError('one\\n' * 9)", INSIDE, 70, "internal error: ValueError: one one"),
    "a full disk": (
        "raise OSError(28, 'No space left on device', 'out/metrics.jsonl')",
        INSIDE,
        2,
        "error: the system refused 'out/metrics.jsonl': No space left on device",
    ),
    "a file that is not there": (
        "open('nowhere/at/all')",
        INSIDE,
        2,
        "error: the system refused 'nowhere/at/all': No such",
    ),
    "no memory": ("raise MemoryError", INSIDE, 2, "error: there is not enough memory (MemoryError): try"),
    "no memory for torch": (
        "import torch; return torch.empty(2**60)",
        INSIDE,
        2,
        "error: there is not enough memory ([enforce fail",
    ),
    "no memory of the system": (
        "raise OSError(12, 'Cannot allocate memory')",
        INSIDE,
        2,
        "error: there is not enough mem",
    ),
    "an error of the user's code": (
        "return 1 / 0",
        MINE,
        2,
        "error: your own code failed: ZeroDivisionError: division by",
    ),
    "the user's code ends the program": (
        "sys.exit(0)",
        MINE,
        2,
        "error: your own code failed: SystemExit: 0 (in app, mine.py",
    ),
    "interrupted without a signal": ("raise KeyboardInterrupt", INSIDE, 130, ""),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_every_end_has_its_sentence_and_its_code(case: str, runs: Runs) -> None:
    source, file, expected, sentence = ENDINGS[case]
    code, out, err = runs(source, file)
    assert (code, out) == (expected, "")
    assert err.startswith(sentence)
    assert err.count("\n") == bool(sentence)
    assert len(reports(Path.cwd())) == (expected == 70)


def test_the_traceback_is_shown_to_who_asks_for_it(runs: Runs, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FEWFED_TRACEBACK", "1")
    code, _, err = runs("from fewfed import errors; raise errors.RunError('no run')")
    assert code == 2
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("\nerror: no run\n")
    monkeypatch.setenv("FEWFED_TRACEBACK", "0")
    assert runs("from fewfed import errors; raise errors.RunError('no run')") == (2, "", "error: no run\n")


METHOD = """
from dataclasses import dataclass
import sys
from fewfed.method import Method

def broken():
    {fault}

@dataclass(frozen=True)
class Mine(Method):
    name = "mine"

    def {function}(self, *given):
        return broken()
"""


@pytest.mark.parametrize("fault", ["return 1 / 0", "sys.exit(0)"])
@pytest.mark.parametrize(
    "function", ["check", "phases", "server_init", "client_init", "broadcast", "personal", "absorb", "predictor"]
)
def test_a_method_that_raises_is_told_its_file_and_line(
    function: str, fault: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    parameters = {"broadcast": "server", "personal": "server, client", "absorb": "server, combined"}
    text = METHOD.format(function=function, fault=fault)
    Path("mine.py").write_text(text.replace("*given", parameters.get(function, "*given")))
    code, out, err = called(
        capsys, monkeypatch, "run", "mine.py", *SMALL, "--executor", "sequential", "--set", "exact=true", "--out", "out"
    )
    assert (code, out) == (2, "")
    assert err.startswith(f"error: method 'mine', {function}")
    assert err.endswith(f"(in {function}, mine.py, line 7)\n")
    assert err.count("\n") == 1
    assert reports(tmp_path) == []


FILES: dict[str, tuple[str, str]] = {
    "sys.exit() at its end": ("import sys\nsys.exit()\n", "cannot be loaded: SystemExit (mine.py, line 2)"),
    "an error when it is read": ("x = 1\nx.y\n", "AttributeError: 'int' object has no attribute 'y' (mine.py, line 2)"),
    "no Python": ("def (:\n", "cannot be loaded: SyntaxError: invalid syntax (mine.py, line 1)"),
    "no text": ("\0\0", "cannot be loaded: "),
    "no method": ("x = 1\n", "defines 0 methods"),
    "a number for a name": ("name = 3", "Mine.name is 3: expected a text"),
    "presets that are none": ("name = 'mine'\n    presets = [1]", "Mine.presets is [1]: expected a Mapping"),
    "a preset that is none": ("name = 'mine'\n    presets = {'a': 1}", "preset 'a' of Mine is 1: expected a Preset"),
    "observed as a text": ("name = 'mine'\n    observed = 'norm'", "Mine.observed is 'norm': expected a Set"),
    "a loss that is a number": ("name = 'mine'\n    loss = 3", "Mine.loss is no function"),
    "an unknown type": ("name = 'mine'\n    x: Nowhere = 1", "the annotations of Mine cannot be read: NameError"),
    "a class that refuses itself": (
        "name = 'mine'\n    def __post_init__(self):\n        1 / 0",
        "method 'mine' cannot be made: ZeroDivisionError: division by zero (in __post_init__, mine.py, line 9)",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_method_file_that_cannot_be_used(case: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    body, sentence = FILES[case]
    head = (
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\nfrom fewfed.method import Method\n"
        "@dataclass(frozen=True)\nclass Mine(Method):\n    "
    )
    Path("mine.py").write_text(head + body + "\n" if body.startswith("name") else body)
    code, out, err = called(capsys, monkeypatch, "run", "mine.py", *SMALL, "--out", "out")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".pyc" and file.is_file()] == ["mine.py"]


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    full = start(["methods", "fedavg"], tmp_path, output="/dev/full")
    assert full.code() == 2
    assert full.err == "error: the system refused: No space left on device\n"


def test_output_that_nobody_takes(tmp_path: Path) -> None:
    def close() -> None:
        sys.stdout.close()
        sys.stdout = None  # type: ignore[assignment]  # As Python itself does where a descriptor is closed.

    closed = start(["methods", "fedavg"], tmp_path, before=close)
    assert closed.code() == 0
    assert closed.err == ""


def test_a_name_that_cannot_be_shown(tmp_path: Path) -> None:
    def in_ascii() -> None:
        sys.stdout.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr]

    name = os.fsdecode(b"Erg\xc3\xa4nzung-\xff")
    ended = start(["run", "fedavg", *SMALL, "--executor", "sequential", "--out", name], tmp_path, before=in_ascii)
    assert ended.code() == 0
    assert ended.err == ""
    assert "folder Erg\\xe4nzung-\\udcff" in ended.out


def test_a_fault_in_one_run_of_a_comparison_is_told_as_such_and_costs_no_other(
    capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"execute": cells.execute}
    source = "def faulty(run, *rest, **options):\n    if run.resolved.spec != 'fedavg':\n        return {}['missing']\n"
    exec(compile(f"{source}    return execute(run, *rest, **options)\n", str(INSIDE), "exec"), names)
    monkeypatch.setattr(cells, "execute", names["faulty"])
    code, out, err = called(capsys, monkeypatch, "compare", "fedavg", "fedprox", *SMALL, "--out", "both")
    (report,) = reports(tmp_path)
    assert code == 70
    assert "fedavg" in out
    assert "1 of 2 runs failed; the first, fedprox-seed0: internal error: KeyError: 'missing'" in " ".join(err.split())
    assert f'File "{INSIDE}", line 3, in faulty' in report.read_text()


def test_a_users_method_that_fails_in_a_comparison_is_no_fault_of_ours(
    capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from fewfed.methods.fedavg import FedAvg\n\n\nclass Own(FedAvg):\n    '''Ends the program.'''\n\n"
        "    name = 'own'\n\n    def server_init(self, setup):\n        raise SystemExit(0)\n"
    )
    code, _, err = called(capsys, monkeypatch, "compare", "own.py", *SMALL, "--out", "one")
    assert code == 2
    assert "SystemExit" in err
    assert reports(tmp_path) == []
