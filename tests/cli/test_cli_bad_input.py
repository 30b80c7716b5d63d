"""Whatever a user gets wrong is said in one sentence on standard error, exit code 2, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_support import SMALL, called, program

CELLS = "a,b,label\n"


def table(path: Path, rows: list[str], header: str = CELLS) -> str:
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return str(path)


def archive(path: Path, **arrays: object) -> str:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return str(path)


def toml(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def ragged(folder: Path) -> str:
    rows = np.empty(4, dtype=object)
    rows[:] = [[1.0], [1.0, 2.0], [3.0], [4.0]]
    return archive(folder / "ragged.npz", x=rows, y=[0, 1, 0, 1])


def not_a_number(folder: Path) -> str:
    x = np.ones((20, 3))
    x[7, 1] = np.nan
    return archive(folder / "nan.npz", x=x, y=np.arange(20) % 2)


FINE = [f"{n},{n % 3},{n % 2}" for n in range(40)]

Arguments = Callable[[Path], list[str]]

NAMES: dict[str, tuple[list[str], list[str]]] = {
    "method, near": (["run", "fedavgg"], ["unknown method 'fedavgg'", "did you mean 'fedavg'?"]),
    "method, far": (["run", "zzzz"], ["unknown method 'zzzz'", "expected one of", "fedprox"]),
    "method of a comparison": (["compare", "fedavg", "flae"], ["unknown method 'flae'", "did you mean 'flea'?"]),
    "method shown": (["methods", "fedpro"], ["unknown method 'fedpro'", "did you mean 'fedprox'?"]),
    "method file": (["run", "nowhere/mine.py"], ["no method file 'nowhere/mine.py'"]),
    "preset": (["run", "flea:offical"], ["unknown preset", "did you mean 'official'?"]),
    "field": (["run", "fedprox", "--set", "muu=1"], ["unknown field", "'muu'", "did you mean 'mu'?"]),
    "field of a part": (["run", "fedprox", "--set", "training.epoch=1"], ["'epoch'", "did you mean 'epochs'?"]),
    "field of no method": (["compare", "fedavg", "fedprox", "--set", "muu=1"], ["'muu'", "did you mean 'mu'?"]),
    "field of no method, by part": (["compare", "fedavg", "fedprox", "--set", "method.muu=1"], ["did you mean 'mu'?"]),
    "owner of a field": (["compare", "fedavg", "fedprox", "--set", "fedpros.mu=1"], ["did you mean 'fedprox'?"]),
    "data": (["run", "fedavg", "--data", "digit"], ["unknown data 'digit'", "did you mean 'digits'?"]),
    "network": (["run", "fedavg", "--network", "mlpp"], ["unknown network 'mlpp'", "did you mean 'mlp'?"]),
    "split rule": (["run", "fedavg", "--split", "qau:2"], ["unknown split rule 'qau'", "did you mean 'qua'?"]),
    "split rule shown": (["split", "--split", "idd"], ["unknown split rule 'idd'", "did you mean 'iid'?"]),
    "executor": (["run", "fedavg", "--executor", "worker"], ["unknown executor 'worker'", "did you mean 'workers'?"]),
    "optimiser": (["run", "fedavg", "--optimizer", "adm"], ["optimizer = 'adm'", "'adam'"]),
    "option": (["run", "fedavg", "--round", "3"], ["--round", "--help"]),
    "command": (["runn"], ["runn", "--help"]),
}

VALUES: dict[str, tuple[list[str], list[str]]] = {
    "no method": (["run"], ["which method?"]),
    "no methods": (["compare"], ["which methods?"]),
    "a method twice": (["compare", "fedavg", "fedavg"], ["named twice"]),
    "cohort beyond clients": (["run", "fedavg", "--clients", "6", "--cohort", "7"], ["cohort = 7", "clients = 6"]),
    "cohort without bound": (["run", "fedavg", "--cohort", "inf"], ["cohort = inf"]),
    "cohort 0": (["run", "fedavg", "--cohort", "0"], ["cohort = 0", "> 0"]),
    "cohort below 0": (["run", "fedavg", "--cohort", "-2"], ["cohort = -2", "> 0"]),
    "cohort of two and a half": (["run", "fedavg", "--cohort", "2.5"], ["cohort = 2.5", "whole number"]),
    "no clients": (["run", "fedavg", "--clients", "0"], ["clients = 0"]),
    "clients below 0": (["run", "fedavg", "--clients", "-1"], ["clients = -1", ">= 0"]),
    "more clients than rows": (["run", "fedavg", "--clients", "5000"], ["too few for 5000 clients"]),
    "classes a client": (["run", "fedavg", "--split", "qua:11"], ["qua:11", "has 10"]),
    "classes of an exact split": (["run", "fedavg", "--split", "exact:5:11"], ["exact:5:11", "has 10"]),
    "Dirichlet without a solution": (
        ["run", "fedavg", "--split", "dirm:0.01", "--clients", "100", "--set", "min_size=10"],
        ["at least 10 rows", "fewer clients"],
    ),
    "Dirichlet of nothing": (["run", "fedavg", "--split", "dir:0"], ["dir:0", "above 0"]),
    "natural split without groups": (["run", "fedavg", "--split", "subject"], ["subject"]),
    "cut by number": (["run", "flea", "--network", "mlp", "--set", "cut=4"], ["cut 4", "1 to 3"]),
    "cut by name": (["run", "flea", "--network", "mlp", "--set", "cut=hidden3"], ["'hidden3'", "did you mean 'hidden"]),
    "hyper-parameter out of range": (["run", "fedprox", "--set", "mu=-1"], ["mu = -1", ">= 0"]),
    "hyper-parameter of another type": (["run", "fedprox", "--set", "mu=much"], ["mu = 'much'", "float"]),
    "hyper-parameter not a number": (["run", "fedprox", "--set", "mu=nan"], ["mu = nan"]),
    "a choice that is none": (["run", "flea", "--set", "kl=both"], ["kl = 'both'", "'global-local'"]),
    "rounds in words": (["run", "fedavg", "--rounds", "three"], ["--rounds", "three"]),
    "no rounds": (["run", "fedavg", "--rounds", "0"], ["rounds = 0", ">= 1"]),
    "seed in words": (["compare", "fedavg", "--set", "seed=lucky"], ["seed = 'lucky'", "int"]),
    "seed below 0": (["run", "fedavg", "--seed", "-1"], ["seed = -1", ">= 0"]),
    "batch of nothing": (["run", "fedavg", "--batch", "0"], ["batch = 0", ">= 1"]),
    "learning rate 0": (["run", "fedavg", "--lr", "0"], ["lr = 0", "> 0"]),
    "set without =": (["run", "fedavg", "--set", "mu"], ["--set mu", "FIELD=VALUE"]),
    "set without a name": (["run", "fedavg", "--set", "=3"], ["FIELD=VALUE"]),
    "processes without workers": (
        ["run", "fedavg", "--executor", "sequential", "--set", "workers.processes=2"],
        ["workers.processes = 2", "needs executor 'workers'", "not 'sequential'"],
    ),
    "a network that gives no classes": (["run", "fedavg", "--network", "unet"], ["unet"]),
    "epochs too few for the method": (["run", "sem(fedavg)", "--epochs", "1"], ["'sem'", "epochs of at least 2"]),
    "a wrapper around nothing": (["run", "fedavg(flea)"], ["wraps nothing"]),
}

DATA: dict[str, tuple[Arguments, list[str]]] = {
    "file not found": (lambda here: ["--data", str(here / "none.csv")], ["there is no file", "none.csv"]),
    "empty file": (lambda here: ["--data", table(here / "t.csv", [], "")], ["is empty", "header"]),
    "only a header": (lambda here: ["--data", table(here / "t.csv", [])], ["no rows"]),
    "missing column": (lambda here: ["--data", table(here / "t.csv", FINE, "a,b,c\n")], ["label", "a, b, c"]),
    "missing column by name": (
        lambda here: ["--data", table(here / "t.csv", FINE), "--set", "label=kind"],
        ["'kind'"],
    ),
    "ragged table": (lambda here: ["--data", table(here / "t.csv", [*FINE, "1,2"])], ["row 41", "2 cells"]),
    "text for a number": (lambda here: ["--data", table(here / "t.csv", ["1,x,0", *FINE])], ["column 'b'", "'x'"]),
    "NaN in a table": (lambda here: ["--data", table(here / "t.csv", [*FINE, "nan,1,0"])], ["NaN"]),
    "NaN in an array": (lambda here: ["--data", not_a_number(here)], ["row 7", "NaN"]),
    "ragged array": (lambda here: ["--data", ragged(here)], ["ragged"]),
    "labels all alike": (
        lambda here: ["--data", archive(here / "t.npz", x=np.ones((9, 2)), y=np.ones(9))],
        ["every row has the label '1'", "two classes"],
    ),
    "labels beyond the classes": (
        lambda here: ["--data", table(here / "t.csv", FINE), "--set", "classes=1"],
        ["label 1", "1 classes"],
    ),
    "labels that are measured": (
        lambda here: ["--data", archive(here / "t.npz", x=np.ones((9, 2)), y=np.arange(9) / 7)],
        ["9 different numbers in 9 rows", "--label"],
    ),
    "inputs without labels": (lambda here: ["--data", archive(here / "t.npz", x=np.ones((9, 2)))], ["no array 'y'"]),
    "unequal lengths": (
        lambda here: ["--data", archive(here / "t.npz", x=np.ones((9, 2)), y=np.zeros(8, int))],
        ["9 inputs but 8 labels"],
    ),
    "not an archive": (lambda here: ["--data", toml(here / "t.npz", "no")], ["t.npz"]),
    "unknown kind of file": (lambda here: ["--data", toml(here / "t.docx", "no")], ["t.docx", ".csv"]),
}

CONFIGURATIONS: dict[str, tuple[str, list[str]]] = {
    "a misspelt field": ("# one\nrounds = 3\nrouns = 4\n", ["line 3", "'rouns'", "did you mean 'rounds'?"]),
    "a misspelt field of a table": ("[training]\nlr = 0.1\nepoch = 2\n", ["line 3", "did you mean 'epochs'?"]),
    "a misspelt table": ("rounds = 3\n\n[trainin]\nlr = 1\n", ["line 3", "'trainin'", "did you mean 'training'?"]),
    "a misspelt method": ('rounds = 2\nmethod = "fleaa"\n', ["line 2", "'fleaa'", "did you mean 'flea'?"]),
    "a misspelt preset": ('method = "flea:offical"\n', ["line 1", "did you mean 'official'?"]),
    "a misspelt data set": ('method = "fedavg"\n\ndata = "digit"\n', ["line 3", "did you mean 'digits'?"]),
    "a misspelt split": ('method = "fedavg"\nsplit = "qau:2"\n', ["line 2", "did you mean 'qua'?"]),
    "a value out of range": ('method = "fedavg"\nrounds = 0\n', ["line 2", "rounds = 0", ">= 1"]),
    "a value of another type": ('method = "fedavg"\n[training]\nlr = "fast"\n', ["line 3", "lr = 'fast'", "float"]),
    "a cohort beyond the clients": ('method = "fedavg"\nclients = 4\ncohort = 5\n', ["line 3", "cohort = 5"]),
    "a value in the last of several tables": (
        'methods = "fedprox"\n[training]\nlr = 1\n[experiment]\nclients = 5\n[data_options]\nclasses = -1\n',
        ["line 7", "classes = -1"],
    ),
    "no TOML": ("rounds = 3\nrounds == 4\n", ["line 2"]),
    "a key twice": ("rounds = 3\nrounds = 4\n", ["line 2"]),
    "methods that are no names": ("rounds = 2\nmethods = [1, 2]\n", ["line 2", "list of names"]),
    "seeds that are no number": ('rounds = 2\nseeds = "many"\n', ["line 2", "seeds = 'many'"]),
    "a table in a table": ("[training]\n[training.lr]\nfirst = 1\n", ["line 2", "'lr'"]),
}


def assert_refused(code: int, out: str, err: str, mentions: list[str], folder: Path) -> None:
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for text in mentions:
        assert text in err
    assert not folder.exists()


def with_out(arguments: list[str], folder: Path) -> list[str]:
    return [*arguments, "--out", str(folder)] if arguments and arguments[0] in ("run", "compare") else arguments


@pytest.mark.parametrize("case", [*NAMES, *VALUES])
def test_bad_arguments(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, mentions = {**NAMES, **VALUES}[case]
    outcome = called(capsys, monkeypatch, *with_out(arguments, tmp_path / "out"))
    assert_refused(*outcome, mentions, tmp_path / "out")


@pytest.mark.parametrize("case", DATA)
def test_bad_data(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, mentions = DATA[case]
    command = ["run", "fedavg", "--split", "iid", "--clients", "3", "--cohort", "2", *arguments(tmp_path)]
    outcome = called(capsys, monkeypatch, *with_out(command, tmp_path / "out"))
    assert_refused(*outcome, mentions, tmp_path / "out")


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_bad_configuration(
    case: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, mentions = CONFIGURATIONS[case]
    file = toml(tmp_path / "bad.toml", text)
    method = [] if "method" in text else ["fedavg"]
    outcome = called(capsys, monkeypatch, *with_out([command, *method, "--config", file], tmp_path / "out"))
    assert_refused(*outcome, ["bad.toml", *mentions], tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "mention"), [(None, "No such file"), (b"\xff\xfe", "not TOML")], ids=["missing", "binary"]
)
def test_a_configuration_that_cannot_be_read(
    content: bytes | None,
    mention: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_bytes(content)
    outcome = called(capsys, monkeypatch, *with_out(["run", "fedavg", "--config", str(file)], tmp_path / "out"))
    assert_refused(*outcome, ["bad.toml", mention], tmp_path / "out")


def test_resuming_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        code, out, err = called(capsys, monkeypatch, "resume", str(place))
        assert (code, out) == (2, "")
        assert err.startswith(f"error: '{place}' is not a run folder")


@pytest.mark.parametrize(
    ("config", "mention"),
    [
        ('{"fewfed": "0.', "is damaged"),
        ("{}", "is damaged"),
        ('{"fewfed": "VERSION"}', "is damaged"),
        ('{"fewfed": "0.0.1"}', "was written by fewfed 0.0.1"),
    ],
)
def test_resuming_a_damaged_configuration_or_another_version(
    config: str, mention: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewfed import __version__

    (tmp_path / "config.json").write_text(config.replace("VERSION", __version__))
    code, out, err = called(capsys, monkeypatch, "resume", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert mention in err
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_running_into_a_folder_that_holds_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--out", str(out))[0] == 0
    before = {file: file.read_bytes() for file in out.iterdir()}
    code, text, err = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--out", str(out))
    assert (code, text) == (2, "")
    assert err.startswith(f"error: '{out}' already holds a run: continue it with 'fewfed resume {out}'")
    assert {file: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.parametrize("name", ["clients", "model.safetensors"])
def test_running_over_files_of_the_user(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named `clients` that is not ours must not be cleared away."""
    mine = tmp_path / name / "mine.txt" if name == "clients" else tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    code, _, err = called(capsys, monkeypatch, "run", "local", *SMALL, "--out", str(tmp_path))
    assert code == 2
    assert f"holds '{name}'" in err
    assert mine.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_place_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--out", str(tmp_path / "file" / "out"))
    assert code == 2
    assert err.startswith("error: cannot create ")
    assert err.count("\n") == 1


def test_the_program_itself_answers_the_same(tmp_path: Path) -> None:
    ended = program("run", "fedavgg", "--out", "out", cwd=tmp_path)
    assert_refused(ended.returncode, ended.stdout, ended.stderr, ["did you mean 'fedavg'?"], tmp_path / "out")
