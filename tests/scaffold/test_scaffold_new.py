"""`fewfed new`: what it writes works at once, and nothing that is there is touched."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fewfed.errors import ConfigError
from fewfed.methods.registry import choose, registered
from fewfed.scaffold.naming import checked_name
from fewfed.scaffold.writing import Kind, write_method
from run_support import SMALL, called, program

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

KINDS: dict[str, tuple[str, ...]] = {"plain": (), "phases": ("--two-phases",), "wrapper": ("--wrapper",)}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(each, marks=pytest.mark.thorough) for each in list(KINDS)[1:])]
)
def test_what_is_written_passes_its_own_test_and_runs(kind: str, tmp_path: Path) -> None:
    made = program("new", "my-method", *KINDS[kind], cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_method.md", "my_method.py", "test_my_method.py"]
    # Its test goes through the whole conformance suite, as `fewfed check` does.
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_method.py"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert f"{3 if kind == 'wrapper' else 2} passed" in tested.stdout
    run = program("run", "my_method.py", *SMALL, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("my-method")


@pytest.mark.timeout(180)
def test_what_is_written_is_checked_as_this_project_is(tmp_path: Path) -> None:
    for kind in KINDS:
        program("new", f"my-{kind}", *KINDS[kind], cwd=tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    assert len(files) == 6
    root = Path(__file__).resolve().parents[2]
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(root / "pyproject.toml"), "--no-cache"]
    ours = ["--config", 'lint.isort.known-first-party = ["fewfed"]']
    for command in ([*ruff, "check", *settings, *ours], [*ruff, "format", "--check", *settings],
                    [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                     "--cache-dir", str(root / ".mypy_cache")]):  # fmt: skip
        done = subprocess.run(
            [*command, *files], cwd=tmp_path, env={**os.environ, "MYPYPATH": str(root / "src")}, capture_output=True,
            text=True, timeout=170,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_was_written_is_told_with_commands_that_can_be_pasted(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    out = tmp_path / "a folder"
    code, said, err = called(capsys, monkeypatch, "new", "my_wrap", "--wrapper", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    assert f"fewfed run '{out}/my_wrap.py(flea)'" in said
    files = json.loads(said.splitlines()[-1])
    assert sorted(files) == ["method", "page", "test"]
    assert choose(files["method"]).method.label == "my-wrap(fedavg)"
    assert "`strength`" in Path(files["page"]).read_text()
    assert "$" not in "".join(Path(path).read_text() for path in files.values())


@pytest.mark.parametrize("folder", ["p (1)", "a:b", "-odd"])
def test_a_folder_that_would_be_taken_apart_is_entered_first(
    folder: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """A path with a bracket would be read as a wrapper, one with a colon as a preset."""
    monkeypatch.chdir(tmp_path)
    code, said, err = called(capsys, monkeypatch, "new", "my-wrap", "--wrapper", f"--out={folder}")
    assert (code, err) == (0, "")
    _, enter, *others = (shlex.split(line) for line in said.splitlines())
    assert enter == ["cd", "--", folder]
    assert others[-1] == ["fewfed", "run", "my_wrap.py(flea)"]
    monkeypatch.chdir(tmp_path / folder)
    for command in others:
        if command[0] == "fewfed":
            assert choose(command[-1]).method.label.startswith("my-wrap(")


@pytest.mark.timeout(180)
def test_its_test_passes_wherever_the_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "Dropbox (mine): new"
    files = write_method(checked_name("my-method"), "wrapper", folder)
    kept = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "setting or around", str(files.test)]
    tested = subprocess.run(kept, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert tested.returncode == 0, tested.stdout


def test_no_name_is_suggested_that_is_not_free() -> None:
    for name in ("FLEA", "Class", "../torch.py"):
        with pytest.raises(ConfigError) as refused:
            checked_name(name)
        assert "perhaps" not in str(refused.value)


@pytest.mark.parametrize("there", ["my_method.py", "test_my_method.py", "my_method.md"])
def test_nothing_is_overwritten_and_nothing_else_is_written_then(there: str, tmp_path: Path) -> None:
    (tmp_path / there).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="not overwritten"):
        write_method(checked_name("my-method"), "plain", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    (tmp_path / "file").touch()
    code, said, err = called(capsys, monkeypatch, "new", "my-method", "--out", str(tmp_path / "file"))
    assert (code, said) == (2, "")
    assert err.startswith("error: cannot write into")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedavg", "there is a method 'fedavg' already"),
        ("fedfa_anchor", "there is a method 'fedfa-anchor' already"),
        ("../mine", "perhaps 'mine'; the folder is --out"),
        ("methods/MyMethod.py", "perhaps 'my-method'"),
        ("C:\\mine", "perhaps 'mine'"),
        ("My Method", "perhaps 'my-method'"),
        ("torch", "means something else"),
        ("random", "means something else"),
        ("class", "means something else"),
        ("none", "means something else"),  # Its class would be called None.
        ("test-mine", "means something else"),
        ("", "expected a name"),
        ("2fast", "expected a name"),
        ("a" * 41, "expected a name"),
        ("a\nb", "expected a name"),
        ("naïve", "perhaps 'naive'"),
        ("名前", "expected a name"),
        ("a--b", "expected a name"),
        ("<b>", "expected a name"),
    ],
)
def test_a_name_that_will_not_do_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_name(name)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "kind"), [("fed-avg", "plain"), ("measure", "phases"), ("around", "wrapper")])
def test_a_class_that_the_file_itself_uses_is_not_hidden(name: str, kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would hide the class"):
        write_method(checked_name(name), kind, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrapper_and_two_phases_exclude_each_other(capsys: Capture, monkeypatch: Patch) -> None:
    code, _, err = called(capsys, monkeypatch, "new", "mine", "--wrapper", "--two-phases")
    assert code == 2
    assert "expected one of them" in err


def test_every_registered_name_could_have_been_given() -> None:
    """The rule for names is the habit of those that are there."""
    for name in registered():
        with pytest.raises(ConfigError, match="already"):
            checked_name(name)
