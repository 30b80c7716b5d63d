"""A run folder gives its model back: whose, with which network, and without running code that it names."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fewfed import Experiment, FewfedError, Training, load, run
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load as read
from fewfed.engine import storage
from fewfed.engine.own_folder import File
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.runs.folder import BLUEPRINT, CHECKPOINT, CONFIG, RESULT
from fewfed.runs.seals import write_sealed
from fewfed.runs.verify import verify
from run_support import SHORT, killed_after, small
from trained.trained_support import SITES, patients

BY_SITE = Experiment(split="client", clients=0, cohort=2.0, rounds=2, network="mlp", executor="sequential")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("run") / "run"
    run("fedavg", small(rounds=1), SHORT, out=out)
    return out


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of three sites, of which two took part."""
    out: Path = tmp_path_factory.mktemp("local") / "run"
    run("local", dataclasses.replace(BY_SITE, rounds=1), Training(epochs=3, lr=0.05), data=patients(), out=out)
    return out


def forge(folder: Path, **changes: object) -> None:
    """Change a blueprint as somebody would who knows how digests are made."""
    path = folder / BLUEPRINT
    written = (json.dumps({**json.loads(path.read_text()), **changes}) + "\n").encode()
    path.write_bytes(written)
    config = json.loads((folder / CONFIG).read_text())
    del config["digest"]
    config["files"][BLUEPRINT] = storage.digest_of(written)
    write_sealed(File.at(folder / CONFIG), config)


def test_the_model_is_a_module_with_names(finished: Path) -> None:
    model = load(finished)
    assert isinstance(model, nn.Module)
    assert model.classes == tuple("0123456789")
    assert model.shape == (1, 8, 8)
    assert model.sites == ()
    assert not model.training
    assert isinstance(model.network, nn.Module)
    assert model(torch.rand(3, 1, 8, 8)).shape == (3, 10)


def test_a_personal_model_is_asked_for_by_its_site(local: Path) -> None:
    with pytest.raises(ConfigError, match=r"a model of its own.*north, south, west"):
        load(local)
    x = patients().test.x
    probabilities = [load(local, site=site).predict_proba(x) for site in SITES]
    numbers = [load(local, client=client).predict_proba(x) for client in range(3)]
    assert all(np.array_equal(one, other) for one, other in zip(probabilities, numbers, strict=True))
    assert len({part.tobytes() for part in probabilities}) == 3
    assert load(local, site="south").site == "south"


def test_who_never_took_part_has_the_first_weights(local: Path) -> None:
    taken = set(storage.load(local / CHECKPOINT)[1]["states"])
    (absent,) = {"0", "1", "2"} - taken
    model = load(local, client=int(absent))
    again = dataclasses.replace(BY_SITE, rounds=1)
    still = Training(epochs=1, optimizer="sgd", lr=1e-30, lr_decay=0.0, lr_floor=0.0)
    run("fedavg", again, still, data=patients(), out=local.parent / "still")
    first = load(local.parent / "still")
    for one, other in zip(model.network.parameters(), first.network.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"site": "nort"}, "did you mean 'north'"),
        ({"site": "north", "client": 0}, "expected one of them"),
        ({"client": 3}, "from 0 to 2"),
        ({"client": -1}, "from 0 to 2"),
        ({"client": True}, "from 0 to 2"),
        ({"client": "north"}, "from 0 to 2"),
    ],
)
def test_nobodys_model_is_refused(local: Path, asked: dict[str, object], said: str) -> None:
    with pytest.raises(FewfedError, match=said):
        load(local, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked", [{"run": 3}, {"run": None}, {"run": b"run"}, {"network": 5}, {"network": nn.Linear}, {"method": 5}]
)
def test_other_types_are_refused_in_a_sentence(finished: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(FewfedError, match="expected"):
        load(**{"run": finished, **asked})


def test_sites_without_names_are_numbers(tmp_path: Path) -> None:
    run("local", small(rounds=1), SHORT, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="it has clients 0 to 5"):
        load(tmp_path / "run")
    with pytest.raises(DataError, match="numbers and no names"):
        load(tmp_path / "run", site="north")


def test_a_common_model_with_a_scaling_of_each_site(tmp_path: Path) -> None:
    data, options = patients(), DataOptions(normalise="site")
    result = run("fedavg", BY_SITE, SHORT, data=data, options=options, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="a scaling of inputs of its own"):
        result.model()
    right = 0
    for number, site in enumerate(SITES):
        own = data.test_groups["client"] == number
        truth = np.array(data.class_names)[data.test.y[own]]
        right += int((result.model(site=site).predict(data.test.x[own]) == truth).sum())
    assert right / len(data.test) == result.accuracy.last


def test_federated_constants_come_along(tmp_path: Path) -> None:
    data, options = patients(), DataOptions(normalise="federated")
    result = run("fedavg", BY_SITE, SHORT, data=data, options=options, out=tmp_path / "run")
    model = result.model()
    assert model.scale.mean is not None
    torch.testing.assert_close(model.scale.mean, data.train.x.mean(0))
    truth = np.array(data.class_names)[data.test.y]
    assert (model.predict(data.test.x) == truth).mean() == result.accuracy.last


def test_an_own_network_is_given_again(tmp_path: Path) -> None:
    def made() -> nn.Module:
        torch.manual_seed(4)
        parts = {"flat": nn.Flatten(), "hidden": nn.Linear(64, 16), "relu": nn.ReLU(), "head": nn.Linear(16, 10)}
        return nn.Sequential(OrderedDict(parts))

    result = run("fedavg", small(rounds=1), SHORT, network=made(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="give it again as network="):
        result.model()
    x = torch.rand(5, 1, 8, 8)
    model = result.model(network=made())
    state = model.network.state_dict()
    expected = made()
    expected.load_state_dict(state)
    torch.testing.assert_close(model.network(x), expected(x))
    with pytest.raises(RunError, match="does not fit network"):
        result.model(network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def test_an_unfinished_run_is_refused_unless_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed_after(1, out, lambda halt: run("fedprox", small(checkpoint_seconds=0), SHORT, out=out, observers=[halt]))
    with pytest.raises(RunError, match=r"not finished.*fewfed resume"):
        load(out)
    model = load(out, unfinished=True)
    server = storage.load(out / CHECKPOINT)[0]
    found = dict(model.network.named_parameters())
    assert all(torch.equal(found[name], leaf) for name, leaf in server["model"]["params"].items())


METHOD = '''
"""A method of somebody's."""
from dataclasses import dataclass
from pathlib import Path
from fewfed.methods.fedavg import FedAvg

Path({mark!r}).touch()


@dataclass(frozen=True)
class Theirs(FedAvg):
    name = "theirs"
    family = "example"
    paper = "none"
'''
PRESENTED = """
    def presented(self, model, x):
        return 0 * x
"""


def run_theirs(tmp_path: Path, more: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """A run with a method file, on a machine that does not know the file: folder, file, and what running it makes."""
    mark, file, out = tmp_path / "mark", tmp_path / "theirs.py", tmp_path / "run"
    file.write_text(METHOD.format(mark=str(mark)) + more)
    run(str(file), small(rounds=1), SHORT, out=out)
    mark.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other user"))
    return out, file, mark


def test_no_code_is_needed_for_a_common_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file, mark = run_theirs(tmp_path, "", monkeypatch)
    file.unlink()
    assert load(out)(torch.rand(1, 1, 8, 8)).shape == (1, 10)
    assert not mark.exists()


def test_code_that_a_folder_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file, mark = run_theirs(tmp_path, PRESENTED, monkeypatch)
    with pytest.raises(RunError, match="which you have not run before"):
        load(out)
    assert not mark.exists()
    model = load(out, method=str(file))
    rows = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(rows)[0], model(rows)[1])
    file.write_text(file.read_text().replace("0 * x", "1 * x"))
    with pytest.raises(RunError, match="another version of the method's file"):
        load(out, method=str(file))


NETWORK = """
from pathlib import Path
from torch import nn

Path({mark!r}).touch()


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.bend, self.head = nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.bend(self.body(x.flatten(1))))


def build(classes):
    return Net(classes)
"""


def test_a_network_file_is_run_only_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, file, out = tmp_path / "mark", tmp_path / "net.py", tmp_path / "run"
    file.write_text(NETWORK.format(mark=str(mark)))
    result = run("fedavg", small(rounds=1, network=f"{file}:build"), SHORT, out=out)
    assert list(load(out).network.state_dict()) == ["body.weight", "body.bias", "head.weight", "head.bias"]
    mark.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other user"))
    with pytest.raises(RunError, match="which you have not run before"):
        load(out)
    assert not mark.exists()
    moved = file.rename(tmp_path / "moved.py")
    with pytest.raises(ConfigError, match="cannot read the network file"):
        load(out)
    data = read("digits")
    truth = np.array(data.class_names)[data.test.y]
    assert (load(out, network=f"{moved}:build").predict(data.test.x) == truth).mean() == result.accuracy.last
    moved.write_text(moved.read_text().replace("nn.ReLU", "nn.Tanh"))
    with pytest.raises(RunError, match="is not the file"):
        load(out, network=f"{moved}:build")
    with pytest.raises(ConfigError, match=r"cannot read the network file|has its network from no file"):
        load(out, network="mlp:build.py")


def test_a_network_in_one_piece_is_loaded(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 10), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.one(x.flatten(1)) + self.two(x.flatten(1)).tanh()
            return found

    result = run("fedavg", small(rounds=1), SHORT, network=Whole(), out=tmp_path / "run")
    data = read("digits")
    truth = np.array(data.class_names)[data.test.y]
    model = result.model(network=Whole())
    assert (model.predict(data.test.x) == truth).mean() == result.accuracy.last
    assert isinstance(model.network, Whole)


@pytest.mark.parametrize("changes", [{"shape": [1, 30_000, 30_000]}, {"shape": [1 << 30, 8, 8]}, {"outputs": 1 << 35}])
def test_a_forged_size_takes_no_memory(finished: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    forge(out, class_names=[], scaling={"mode": "none", "common": None, "sites": {}}, **changes)
    with pytest.raises(FewfedError):
        load(out)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "has format 2"),
        ({"shape": []}, "its shape do not fit"),
        ({"shape": [1, 8.5]}, "is damaged"),
        ({"shape": "ab"}, "is damaged"),
        ({"sites": ["north"]}, "its sites do not fit"),
        ({"class_names": ["a"]}, "its class_names do not fit"),
        ({"network": {"origin": "built-in", "name": "lenet55", "digest": ""}}, "did you mean 'lenet5'"),
        ({"network": {"origin": "elsewhere", "name": "mlp", "digest": ""}}, "is damaged"),
        ({"network": {"origin": "file", "name": "none.py:build", "digest": "0"}}, "cannot read"),
        ({"network": {"origin": "built-in", "name": "digits-cnn", "digest": ""}}, "does not fit network 'digits-cnn'"),
        (
            {"scaling": {"mode": "pooled", "common": {"mean": [0, 1], "std": [1, 1], "fill": None}, "sites": {}}},
            "scaling",
        ),
    ],
)
def test_a_forged_blueprint_is_one_sentence(
    finished: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    forge(out, **changes)
    with pytest.raises(FewfedError, match=said):
        load(out)


def test_damage_is_noticed(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    path = out / BLUEPRINT
    path.write_text(path.read_text().replace('"mlp"', '"mpl"'))
    with pytest.raises(RunError, match="does not fit the digest"):
        load(out)
    assert {found.name for found in verify(out) if found.problem} == {BLUEPRINT}
    path.unlink()
    with pytest.raises(RunError, match="cannot read"):
        load(out)
    assert [found.problem for found in verify(out) if found.name == BLUEPRINT] == ["it is missing"]
    with pytest.raises(RunError, match="not a run folder"):
        load(tmp_path)


def test_a_run_of_another_version_is_read(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    config = json.loads((out / CONFIG).read_text())
    del config["digest"]
    config["fewfed"] = "9.9.9"
    write_sealed(File.at(out / CONFIG), config)
    assert load(out).classes == tuple("0123456789")
    del config["files"][BLUEPRINT]
    write_sealed(File.at(out / CONFIG), config)
    with pytest.raises(RunError, match="before runs had a blueprint"):
        load(out)
    assert (out / RESULT).exists()
