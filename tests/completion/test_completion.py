"""`fewfed completion`: real shells complete what can be typed, and start no program to do so."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fewfed.cli.app import app
from fewfed.completion import scripts, values
from fewfed.completion.grammar import commands_of
from fewfed.methods.registry import presets_of, registered
from run_support import called

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

CASES = {
    "fewfed advise --judge o": {"own"},
    "fewfed advise --share ": {"model", "averages", "inputs"},
    "fewfed ": {"run", "compare", "doctor", "data"},
    "fewfed co": {"compare", "completion"},
    "fewfed data ": {"get"},
    "fewfed data get cif": {"cifar10", "cifar100"},
    "fewfed run fle": {"flea", "flea:official"},
    "fewfed run flea --exec": {"--executor"},
    "fewfed run flea --executor ": {"auto", "cuda", "ray", "sequential", "workers"},
    "fewfed compare fedavg fedprox": {"fedprox", "fedprox:released"},
    "fewfed run flea --executor wor": {"workers"},
    "fewfed run --optimizer ada": {"adam", "adamw"},
    "fewfed run --robust me": {"median"},
    "fewfed run --out d": {"data"},
    "fewfed run --network digits-c": {"digits-cnn", "digits-cnn-gn"},
    "fewfed methods scaff": {"scaffold"},
    "fewfed completion ": {"bash", "fish", "zsh"},
    "fewfed export my-": {"my-run"},
    "fewfed nonsense --exec": set(),
    "fewfed run --nonsense ": {"fedavg"},
    # A folder that is called like a command, or a command like a part of the line, is none.
    "fewfed show data ge": set(),
    "fewfed report compare --att": set(),
    "fewfed predict my-run --data dig": set(),
    "fewfed data get da": set(),
}
"""What is typed, and what must be among the answers (or is all of them, where there is a beginning to complete)."""


def text_for(shell: str) -> str:
    return scripts.script(shell, commands_of(app, values.kinds()), values.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to complete in: a run, a folder called like a command, names that shells must quote."""
    for shell in values.SHELLS:
        (tmp_path / f"script.{shell}").write_text(text_for(shell))
    (tmp_path / "my-run").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "a folder").mkdir()
    (tmp_path / "b[1].npz").touch()
    return tmp_path


def in_bash(line: str, folder: Path, breaks: str = " \t\n\"'><=;|&(:") -> set[str]:
    """What bash is offered, by its own protocol."""
    code = """
source script.bash
[[ $(complete -p fewfed) == 'complete -F _fewfed fewfed' ]] || exit 9
COMP_WORDBREAKS=$BREAKS COMP_LINE=$LINE COMP_POINT=${#LINE}
mapfile -t COMP_WORDS <<< "$WORDS"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
PATH=  # No program can be started.
_fewfed
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=folder,
        env={**os.environ, "LINE": line, "BREAKS": breaks, "WORDS": "\n".join(apart(line, breaks))},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.splitlines()) - {""}


def apart(line: str, breaks: str) -> list[str]:
    """The words of a line without quotes as bash takes it apart; the last may be empty."""
    signs = re.escape("".join(set(breaks) - set(" \t\n")))
    words = re.findall(rf"[{signs}]+|[^\s{signs}]+", line) if signs else line.split()
    return [*words, ""] if line.endswith(" ") else words


def in_fish(line: str, folder: Path) -> set[str]:
    code = "set -e fish_complete_path; source script.fish; complete -C $LINE"
    env = {**os.environ, "LINE": line, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none")}
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return {answer.split("\t")[0].rstrip("/") for answer in done.stdout.splitlines()}


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.mark.parametrize(
    "ask", [pytest.param(in_bash, marks=needs("bash")), pytest.param(in_fish, marks=needs("fish"))]
)
@pytest.mark.parametrize("line", CASES)
def test_a_shell_offers_what_can_come_next(ask: object, line: str, folder: Path) -> None:
    assert callable(ask)
    found, wanted = ask(line, folder), CASES[line]
    if line.endswith(" "):
        assert wanted <= found
    else:
        assert found == wanted


@needs("bash")
def test_bash_replaces_only_what_follows_its_word_breaks(folder: Path) -> None:
    assert in_bash("fewfed run flea:of", folder) == {"official"}
    assert in_bash("fewfed run flea:of", folder, breaks=" \t\n") == {"flea:official"}
    assert in_bash("fewfed run --executor=wor", folder) == {"workers"}
    assert in_bash("fewfed run --executor=wor", folder, breaks=" \t\n") == {"--executor=workers"}


@needs("fish")
def test_fish_offers_files_behind_an_equals_sign_too(folder: Path) -> None:
    assert in_fish("fewfed run --out=da", folder) == {"--out=data"}
    assert in_fish("fewfed run --data=my-", folder) == {"--data=my-run"}


def typed(shell: list[str], setup: str, keys: str, folder: Path, wanted: str) -> str:
    """What a shell on a terminal shows after these keys."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(HOME=str(folder), TERM="dumb", PS1="> ", ZDOTDIR=str(folder))
        os.execvp(shell[0], shell)
    shown = b""

    def wait_for(text: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 30
        while text.encode() not in shown.replace(b"\a", b""):
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)

    try:
        os.write(terminal, f"{setup}; echo REA''DY\n".encode())
        wait_for("READY")
        os.write(terminal, keys.encode())
        wait_for(wanted)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


@needs("bash")
@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("doc\t", "fewfed doctor"),
        ("run flea:o\t", "flea:official "),
        ("run --executor=seq\t", "--executor=sequential "),
        ("show a\\ f\t", "show a\\ folder/"),
        ('show "a f\t', 'show "a folder'),
        ("show 'a f\t", "show 'a folder"),
        ("show --csv 'a folder' b\t", "b\\[1\\].npz "),
    ],
)
def test_tab_completes_in_bash_on_a_terminal(keys: str, wanted: str, folder: Path) -> None:
    typed(["bash", "--norc", "--noprofile", "-i"], "source script.bash", f"fewfed {keys}", folder, wanted)


@needs("zsh")
@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("doc\t", "fewfed doctor"),
        ("run flea:o\t", "flea:official"),
        ("run --executor=seq\t", "--executor=sequential"),
        ("run --executor seq\t", "--executor sequential"),
        ("export my-\t", "my-run"),
    ],
)
def test_tab_completes_in_zsh_on_a_terminal(keys: str, wanted: str, folder: Path) -> None:
    setup = "autoload -Uz compinit; compinit -u; source ./script.zsh"
    typed(["zsh", "-f", "-i"], setup, f"fewfed {keys}", folder, wanted)


@needs("zsh")
def test_zsh_finds_the_script_where_it_is_installed(folder: Path) -> None:
    (folder / ".zfunc").mkdir()
    shutil.copy(folder / "script.zsh", folder / ".zfunc" / "_fewfed")
    setup = "fpath+=~/.zfunc; autoload -Uz compinit; compinit -u"
    typed(["zsh", "-f", "-i"], setup, "fewfed doc\t", folder, "fewfed doctor")


@needs("bash")
def test_pressing_tab_is_quicker_than_python_starts(folder: Path) -> None:
    """A ratio on the same machine at the same time: twenty completions against twenty starts of Python alone."""
    code = """
source script.bash
COMP_LINE='fewfed run flea --executor wor' COMP_POINT=30 COMP_WORDBREAKS=$' :='
began=$EPOCHREALTIME
for i in {1..20}; do _fewfed; done
ended=$EPOCHREALTIME
echo $(( ${ended/[.,]/} - ${began/[.,]/} ))
"""
    done = subprocess.run(["bash", "--norc", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    began = time.perf_counter()
    for _ in range(20):
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    assert int(done.stdout) / 1e6 < time.perf_counter() - began


# The tables.


def test_every_kind_belongs_to_a_parameter_and_has_values() -> None:
    commands = commands_of(app, values.kinds())
    used = {option.value for command in commands for option in command.options} | {each.arguments for each in commands}
    listed = values.values()
    assert {"methods", "data", "networks", "executors", "metrics", "splits", "shells"} <= used
    assert used - {None, "", "files"} <= listed.keys()
    for names in listed.values():
        assert all(name and not set(name) & set(" \t'\"\\$`") for name in names)


def test_every_method_and_preset_is_listed() -> None:
    listed = values.values()["methods"]
    assert set(registered()) <= set(listed)
    assert {f"{name}:{preset}" for name in registered() for preset in presets_of(name)[1:]} <= set(listed)


# The command.


def test_the_script_is_printed_for_the_shell_of_the_user(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert called(capsys, monkeypatch, "completion") == (0, text_for("fish"), "")


@pytest.mark.parametrize("shell", values.SHELLS)
def test_it_is_installed_where_the_shell_looks_and_again_after_an_upgrade(
    shell: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        code, out, err = called(capsys, monkeypatch, "completion", shell, "--install")
        assert (code, err) == (0, "")
        place = Path(out.split(": ")[0])
        assert place.is_relative_to(tmp_path)
        assert place.read_text() == text_for(shell)
    place.write_text("complete -W mine fewfed")
    code, _, err = called(capsys, monkeypatch, "completion", shell, "--install")
    assert code == 2
    assert "is not overwritten" in err
    assert place.read_text() == "complete -W mine fewfed"


@pytest.mark.parametrize(("arguments", "says"), [(("bahs",), "did you mean 'bash'?"), ((), "which shell?")])
def test_an_unknown_shell_is_one_sentence(
    arguments: tuple[str, ...], says: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/odd")
    code, out, err = called(capsys, monkeypatch, "completion", *arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    code, _, err = called(capsys, monkeypatch, "completion", "bash", "--install")
    assert code == 2
    assert err.startswith("error: cannot write")
