"""Runs with a user's own network: from a file, in one piece, partly frozen; what is saved fits the user's module."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fewfed import Training, resume, run, tree
from fewfed.conformance.differences import differences
from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError
from fewfed.runs import remaking
from fewfed.runs.experiment import layered
from fewfed.runs.folder import RunFolder
from fewfed.runs.prepare import prepare
from run_support import SHORT, assert_same_end, called, killed_after, small

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

FILE = '''
import os
from pathlib import Path
import torch
from torch import nn

Path(__file__).with_suffix(".ran").touch()


class Net(nn.Module):
    """Children in order, and a flatten that is none of them."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.act = nn.{act}(inplace=True)
        self.fc = nn.Linear(108, classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.act(self.norm(self.conv(x))), 1))


class Skips(Net):
    """In one piece."""

    def forward(self, x):
        return super().forward(x) + x.flatten(1)[:, :10]


def build(shape, classes):
    return Net(classes)
'''

TINY = ("--clients", "6", "--cohort", "3", "--rounds", "3", "--epochs", "1", "--executor", "sequential")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return written(tmp_path / "net.py")


def written(path: Path, act: str = "ReLU") -> Path:
    path.write_text(FILE.replace("{act}", act))
    return path


def module_in(file: Path, name: str = "Net") -> nn.Module:
    """The user's own class, as the user's own program would make it."""
    spec = importlib.util.spec_from_file_location("their_net", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["their_net"] = loaded
    spec.loader.exec_module(loaded)
    made: nn.Module = getattr(loaded, name)(10)
    return made


def test_a_file_gives_the_same_run_wherever_it_is_named(file: Path, capsys: Capture, monkeypatch: Patch) -> None:
    named, folder = f"{file}:build", file.parent
    first = run("flea", small(network=named), SHORT, out=folder / "python")
    assert first.failed == 0
    run("flea", small(), SHORT, network=named, out=folder / "argument")
    code, _, err = called(capsys, monkeypatch, "run", "flea", "--network", named, *TINY, "--out", str(folder / "flag"))
    assert code == 0, err
    toml = folder / "e.toml"
    toml.write_text(f'method = "flea"\nnetwork = "{named}"\n')
    code, _, err = called(capsys, monkeypatch, "run", "--config", str(toml), *TINY, "--out", str(folder / "toml"))
    assert code == 0, err
    run(
        "flea",
        small(network=named),
        SHORT,
        executor=Options(processes=2, stack=1, layout="plain"),
        out=folder / "workers",
    )
    for other in ("argument", "flag", "toml"):
        assert_same_end(folder / other, folder / "python")
    assert differences(RunFolder(folder / "workers").model(), RunFolder(folder / "python").model()) == []


@pytest.mark.parametrize("name", ["Net", "Skips"])
def test_what_is_saved_fits_the_users_module(file: Path, name: str) -> None:
    run("fedavg", small(network=f"{file}:{name}"), SHORT, out=file.parent / "run")
    model = RunFolder(file.parent / "run").model()
    theirs = module_in(file, name)
    saved = load_file(file.parent / "run" / "model.safetensors")
    theirs.load_state_dict({key.partition("/")[2]: value for key, value in saved.items()})
    prepared = prepare(layered("fedavg", {}, small(network=f"{file}:{name}"), {}, DataOptions()))
    theirs = module_in(file, name)
    theirs.load_state_dict(prepared.job.net.state_dict(model))
    x = prepared.job.federation.test.x[:20]
    with torch.no_grad():
        assert torch.equal(theirs.eval()(x), prepared.job.net.apply(model, x, train=False))


def test_a_method_that_cuts_refuses_one_piece_with_the_line_it_stands_on(
    file: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    code, out, err = called(capsys, monkeypatch, "run", "flea", "--network", f"{file}:Skips", *TINY)
    assert (code, out) == (2, "")
    assert "needs stages, but network" in err
    assert "'stages'" in err
    toml = file.parent / "e.toml"
    toml.write_text(f'method = "fedavg"\n\nnetwork = "{file}:biuld"\n')
    code, _, err = called(capsys, monkeypatch, "run", "--config", str(toml))
    assert code == 2
    assert "e.toml, line 3: unknown name in" in err


def stopped(file: Path, folder: Path) -> None:
    settings = small(network=f"{file}:build", rounds=4, checkpoint_seconds=0)
    killed_after(2, folder, lambda halt: run("fedavg", settings, SHORT, out=folder, observers=[halt]))


def test_a_folder_does_not_decide_which_code_is_run(
    file: Path, capsys: Capture, monkeypatch: Patch, tmp_path: Path
) -> None:
    folder, ran = tmp_path / "run", file.with_suffix(".ran")
    stopped(file, folder)
    ran.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "somebody else"))
    for command in (("resume", str(folder)), ("diagnose", "exposure", str(folder))):
        code, _, err = called(capsys, monkeypatch, *command)
        assert code == 2
        assert f"asks to run the code in '{file}', which you have not run before" in err
        assert f"--network {file}:build" in err
    with pytest.raises(RunError, match="in Python as network="):
        resume(folder, method="fedavg")
    with pytest.raises(ConfigError, match="is not the run's"):
        resume(folder, network="mlp")
    assert not ran.exists()
    moved = written(tmp_path / "elsewhere.py").rename(tmp_path / "cache" / "net.py")
    code, _, err = called(capsys, monkeypatch, "resume", str(folder), "--network", f"{moved}:build")
    assert code == 0, err
    reference = tmp_path / "reference"
    settings = small(network=f"{file}:build", rounds=4, checkpoint_seconds=0)
    run("fedavg", settings, SHORT, out=reference)
    assert_same_end(folder, reference)


def test_a_file_that_was_run_before_is_known_by_its_content(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stopped(file, folder)
    content = file.read_text()
    file.write_text(content + "\n# edited")
    with pytest.raises(RunError, match="have not run before"):
        resume(folder)
    with pytest.raises(RunError, match="was started with other code of the network"):
        resume(folder, network=f"{file}:build")
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read the network file"):
        resume(folder)
    file.write_text(content)
    assert resume(folder).rounds == 4


def test_a_comparison_is_of_one_network(file: Path, capsys: Capture, monkeypatch: Patch) -> None:
    compared = ("compare", "fedavg", "flea", "--network", f"{file}:build", *TINY[:-2], "--jobs", "1",
                "--out", str(file.parent / "all"))  # fmt: skip
    code, shown, err = called(capsys, monkeypatch, *compared)
    assert code == 0, err
    written(file, "Tanh() if True else dict")
    code, _, err = called(capsys, monkeypatch, *compared)
    assert code == 2
    assert "other code of the network" in err
    written(file)
    code, again, _ = called(capsys, monkeypatch, *compared)
    assert (code, again) == (0, shown)


def test_another_process_looks_the_network_up_in_its_file(file: Path, tmp_path: Path) -> None:
    prepared = prepare(layered("fedavg", {}, small(network=f"{file}:build"), {}, DataOptions()))
    folder = OwnFolder(tmp_path / "job")
    remaking.write(prepared, folder)
    program = (
        "import sys\nfrom pathlib import Path\nfrom fewfed.runs.identity import weights_of\n"
        "from fewfed.runs.remaking import job_in\nprint(weights_of(job_in(Path(sys.argv[1])).net))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder.path)], capture_output=True, cwd=tmp_path)
    assert done.stdout.decode().strip() == prepared.inputs["weights"], done.stderr.decode()
    written(file, "SiLU")
    with pytest.raises(RunError, match="the file of the method or of the network has changed"):
        remaking.job_in(folder.path)


class Frozen(nn.Module):
    """A head on features that are not trained, as in transfer learning."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.head = nn.Linear(16, 10)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


@pytest.mark.parametrize("method", ["fedavg", "flea", "scaffold", "fedadam", "moon"])
def test_frozen_layers_stay_as_they_are(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Frozen()
    ended = run(method, small(), SHORT, network=module, out=tmp_path / "run")
    assert ended.failed == 0
    model = RunFolder(tmp_path / "run").model()
    after = {**model["params"], **model["buffers"]}
    assert torch.equal(after["body.1.weight"], module.body[1].weight)
    assert not torch.equal(after["head.weight"], module.head.weight)


class Drops(nn.Module):
    """Draws by a function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.last(nn.functional.dropout(x.flatten(1), 0.5, self.training))


def test_what_a_module_draws_comes_from_the_seed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Drops()
    for name, executor in (("one", "sequential"), ("two", "sequential"), ("three", Options(processes=2, stack=1))):
        torch.rand(7)
        run("fedavg", small(), SHORT, network=module, executor=executor, out=tmp_path / name)
    first = RunFolder(tmp_path / "one").model()
    assert all(differences(RunFolder(tmp_path / name).model(), first) == [] for name in ("two", "three"))


def test_a_module_in_one_piece_starts_from_the_model_of_another_run(file: Path, tmp_path: Path) -> None:
    named = f"{file}:Skips"
    run("fedavg", small(network=named), SHORT, out=tmp_path / "first")
    before = RunFolder(tmp_path / "first").model()
    again = small(network=named, start_from=str(tmp_path / "first"), rounds=1)
    run("fedavg", again, Training(epochs=1, lr=1e-12), out=tmp_path / "then")
    distance = tree.sq_distance(RunFolder(tmp_path / "then").model()["params"], before["params"])
    assert float(distance) < 1e-9


@pytest.mark.parametrize(
    ("network", "mention"),
    [
        (nn.Linear, r"expected an object, as in network=Linear\(\.\.\.\)"),
        ([nn.Linear(2, 2)], r"expected a torch\.nn\.Module, or the name of a network"),
        ("mlpp", "unknown network 'mlpp': did you mean 'mlp'"),
        ("nowhere.py:build", r"cannot read the network file 'nowhere\.py'|no network file"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "nothing to train"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False), "nothing to train"),
    ],
)
def test_what_is_no_network_is_refused(network: Any, mention: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=mention):
        run("fedavg", small(), SHORT, network=network, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
