"""Runs from Python: the folder and what is in it, the result, and a user's own data and networks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fewfed import Dataset, Examples, Experiment, Network, Training, __version__, resume, run
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.data.splits import make_split
from fewfed.engine import storage
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.folder import RunFolder
from fewfed.runs.naming import default_folder
from fewfed.runs.results import Summary
from fewfed.runs.scaling import apply_known
from run_support import SHORT, assert_same_end, killed_after, records, rounds_written, small
from support import same

METHODS = ("fedavg", "fedprox", "fedmix", "feddata", "flea", "local", "single")
STATEFUL = ("local",)
TWO_WORKERS = Options(processes=2, stack=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FLea over twelve rounds."""
    out: Path = tmp_path_factory.mktemp("run") / "flea"
    run("flea", small(rounds=12), Training(epochs=2, lr=0.01), values={"share": 0.2}, out=out)
    return out


def content(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_files_of_a_run(finished: Path) -> None:
    assert {file.name for file in finished.iterdir()} == {
        "config.json",
        "environment.json",
        "split.json",
        "blueprint.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "choices.json",
        "lock",
        "model.safetensors",
        "result.json",
        "scores.json",
    }


def test_the_configuration_is_complete(finished: Path) -> None:
    config = content(finished, "config")
    assert config["fewfed"] == __version__
    assert Resolved.from_json(config) == Resolved(
        "flea",
        {"share": 0.2},
        small(split="qua:2", rounds=12),
        Training(epochs=2, lr=0.01),
        resolve("flea", {}).options,
    )


def test_running_the_recorded_configuration_again_gives_the_same(finished: Path, tmp_path: Path) -> None:
    recorded = Resolved.from_json(content(finished, "config"))
    run(recorded.spec, recorded.experiment, recorded.training, values=dict(recorded.values), out=tmp_path / "again")
    assert_same_end(tmp_path / "again", finished)


def test_the_environment(finished: Path) -> None:
    environment = content(finished, "environment")
    assert environment["torch"] == torch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["cores"] >= 1


def test_the_split_is_the_one_of_the_configuration(finished: Path) -> None:
    digits = load("digits")
    labels = digits.train.y.numpy()
    split = make_split("qua:2", labels, 10, clients=6, seed=0)
    manifest = content(finished, "split")
    assert manifest["digest"] == split.digest
    assert manifest["clients"] == 6
    assert manifest["rows"] == sum(len(split.rows(client)) for client in range(6))
    assert manifest["sizes"]["smallest"] == min(len(split.rows(client)) for client in range(6))


def test_a_line_of_metrics_a_round(finished: Path) -> None:
    found = lines(finished)
    assert [record["round"] for record in found] == list(range(1, 13))
    test = load("digits").test.y.numpy()
    shares = np.bincount(test, minlength=10) / len(test)
    for record in found:
        assert record["accuracy"] == pytest.approx(float(np.dot(record["per_class"], shares)))
        assert record["loss"] > 0
        assert record["seconds"] > 0
        assert record["seconds"] >= record["train_seconds"] * 0.99
        assert record["failed"] == []
        assert record["lr"] == pytest.approx(0.01 * 0.98 ** (record["round"] - 1))
        for way in ("up", "down"):
            assert record["bytes"][way] == sum(phase[f"bytes_{way}"] for phase in record["phases"].values())
        assert 0 < record["phases"]["train"]["terms"]["correlation"] <= 1
        assert record["steps"] == record["phases"]["train"]["steps"]


def test_bytes_and_rows_are_those_of_what_is_sent(finished: Path) -> None:
    """Float32 weights of the perceptron; 64 features and an int64 label for every fifth row."""
    model = 4 * ((64 * 128 + 128) + (128 * 64 + 64) + (64 * 10 + 10))
    for record in lines(finished):
        train, share = record["phases"]["train"], record["phases"]["share"]
        rows = share["rows"]["features"]
        assert train["bytes_up"] == 3 * model
        assert share["bytes_up"] == rows * (4 * 64 + 8)
        assert share["rows"]["labels"] == rows


def test_the_steps_are_those_of_the_batches(finished: Path) -> None:
    split = make_split("qua:2", load("digits").train.y.numpy(), 10, clients=6, seed=0)
    most = sorted((2 * -(-len(split.rows(client)) // 32) for client in range(6)), reverse=True)
    for record in lines(finished):
        assert sum(most[-3:]) <= record["steps"] <= sum(most[:3])


def test_the_result_sums_the_rounds_up(finished: Path) -> None:
    result, found = content(finished, "result"), lines(finished)
    curve = [record["accuracy"] for record in found]
    assert result["accuracy"] == {
        "best": max(curve),
        "last": curve[-1],
        "last10": pytest.approx(float(np.mean(curve[-10:]))),
    }
    assert result["accuracy"]["best"] >= result["accuracy"]["last"]
    assert result["bytes"]["up"] == sum(record["bytes"]["up"] for record in found)
    assert result["steps"] == sum(record["steps"] for record in found)
    assert result["seconds"] == pytest.approx(sum(record["seconds"] for record in found))
    assert (result["method"], result["preset"], result["folder"]) == ("flea", "paper", str(finished))


def test_the_final_model_scores_what_the_last_round_says(finished: Path) -> None:
    digits = apply_known(load("digits"), DataOptions())
    model, _ = storage.load(finished / "model.safetensors")
    weights = model["params"]
    x = digits.test.x.flatten(1)
    for layer in ("hidden1.linear", "hidden2.linear"):
        x = torch.relu(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
    scores = x @ weights["head.weight"].T + weights["head.bias"]
    right = (scores.argmax(1) == digits.test.y).double().mean()
    assert float(right) == pytest.approx(lines(finished)[-1]["accuracy"])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_three_accuracies(curve: list[float]) -> None:
    found = Summary.of(curve)
    assert found.best == np.max(curve)
    assert found.last == curve[-1]
    assert found.best >= found.last
    assert found.last10 == pytest.approx(np.mean(np.array(curve)[-10:]))
    assert found.best >= found.last10 - 1e-12


def test_accuracies_are_over_evaluated_rounds_and_the_last_always_is(tmp_path: Path) -> None:
    every = run("fedavg", small(rounds=8), SHORT, out=tmp_path / "every")
    some = run("fedavg", small(rounds=8, evaluate_every=3), SHORT, out=tmp_path / "some")
    curve = [record["accuracy"] for record in lines(tmp_path / "every")]
    assert [record["round"] for record in lines(tmp_path / "some") if "accuracy" in record] == [3, 6, 8]
    assert some.accuracy == Summary.of([curve[2], curve[5], curve[7]])
    assert every.accuracy.last == some.accuracy.last


def test_executors_write_the_same_run(finished: Path, tmp_path: Path) -> None:
    training = Training(epochs=2, lr=0.01)
    run("flea", small(rounds=12), training, values={"share": 0.2}, executor=TWO_WORKERS, out=tmp_path / "workers")
    assert_same_end(tmp_path / "workers", finished)


def test_the_default_folder_is_named_after_the_run_and_never_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = run("fedavg", small(rounds=1), SHORT)
    second = run("fedavg", small(rounds=1), SHORT)
    assert first.folder == "runs/fedavg-digits-qua-2-seed0"
    assert second.folder == "runs/fedavg-digits-qua-2-seed0-2"
    odd = resolve("flea:official", {"data": "/some where/my data.csv", "split": "dir:0.1", "seed": 3})
    assert default_folder(odd).name == "flea-official-my-data-dir-0.1-seed3"


def test_a_wrapped_method_with_a_preset_is_named_in_full(tmp_path: Path) -> None:
    result = run("sem(flea:official)", small(rounds=1), Training(epochs=2), out=tmp_path / "run")
    assert (result.method, result.preset) == ("sem(flea)", "official")


def test_what_observers_add_to_a_round_is_recorded_with_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Look:
        def after_round(self, view: RoundView) -> None:
            seen.append((view.clock.round + 1, rounds_written(tmp_path / "run")))
            view.record.add({"looked": True})

    run("fedavg", small(), SHORT, out=tmp_path / "run", observers=[Look()])
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert all(record["looked"] for record in RunFolder(tmp_path / "run").metrics())


def test_a_new_run_does_not_go_into_an_old_folder(tmp_path: Path) -> None:
    run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")


# A user's own data and networks.


def blobs(classes: int = 3, name: str = "blobs", seed: int = 5) -> Dataset:
    """Points around the corners of a triangle, 1 by 4 numbers each."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.eye(4)[:classes] * 3

    def part(rows: int) -> Examples:
        y = torch.arange(rows) % classes
        return Examples((centres[y] + torch.randn(rows, 4, generator=draw)).unsqueeze(1), y)

    return Dataset(name, part(120), part(60), classes)


class Staged(nn.Module):
    """A module that says itself in which order its parts are applied."""

    stages = ("encode", "decide")

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.decide = nn.Linear(8, 3)
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decide(self.encode(x))
        return out


def sequential(seed: int = 0) -> nn.Sequential:
    whole = Staged(seed)
    return nn.Sequential(OrderedDict(encode=whole.encode, decide=whole.decide))


OWN = Experiment(split="iid", clients=6, cohort=3.0, rounds=3, executor="sequential")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_own_data_and_networks(method: str, tmp_path: Path) -> None:
    training = Training(epochs=3, lr=0.02)
    ended = run(method, OWN, training, data=blobs(), network=Staged(), out=tmp_path / "staged")
    run(method, OWN, training, data=blobs(), network=sequential(), out=tmp_path / "sequential")
    assert ended.data == "blobs"
    assert ended.failed == 0
    assert ended.accuracy.best > 1.5 / 3
    assert_same_end(tmp_path / "sequential", tmp_path / "staged")
    assert bool(list((tmp_path / "staged").glob("clients/*"))) == (method in STATEFUL)


def test_the_users_module_is_left_as_it_was(tmp_path: Path) -> None:
    module = Staged()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run("flea", OWN, SHORT, data=blobs(), network=module, out=tmp_path / "run")
    assert same(before, dict(module.state_dict()))
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("method", ["flea", "local"])
def test_an_own_run_is_resumed_with_the_same_objects_only(method: str, tmp_path: Path) -> None:
    out, expected = tmp_path / "run", tmp_path / "reference"
    settings = Experiment(split="iid", clients=6, cohort=3.0, rounds=4, executor="sequential", checkpoint_seconds=0)
    run(method, settings, SHORT, data=blobs(), network=Staged(), out=expected)
    killed_after(
        2,
        out,
        lambda halt: run(method, settings, SHORT, data=blobs(), network=Staged(), out=out, observers=[halt]),
    )
    with pytest.raises(DataError, match="unknown data 'blobs'"):
        resume(out)
    with pytest.raises(ConfigError, match="unknown network 'custom'"):
        resume(out, data=blobs())
    with pytest.raises(RunError, match="started with another network"):
        resume(out, data=blobs(), network=Staged(seed=1))
    other = blobs()
    shuffled = Dataset("blobs", Examples(other.train.x, other.train.y.flip(0)), other.test, 3)
    with pytest.raises(RunError, match="started with other data"):
        resume(out, data=shuffled, network=Staged())
    resume(out, data=blobs(), network=sequential())
    assert_same_end(out, expected)


def with_rows(x: Tensor | None = None, y: Tensor | None = None) -> Dataset:
    train = blobs().train
    return Dataset("bad", Examples(train.x if x is None else x, train.y if y is None else y), blobs().test, 3)


def nan_in(row: int) -> Tensor:
    x = blobs().train.x.clone()
    x[row, 0, 2] = float("nan")
    return x


@pytest.mark.parametrize(
    ("data", "mention"),
    [
        (with_rows(y=torch.full((120,), 3)), r"row 0 has label 3: expected 0 to 2"),
        (with_rows(x=nan_in(17)), r"row 17 holds NaN"),
        (with_rows(x=torch.ones(5, 1, 4)), r"5 inputs but 120 labels"),
        (with_rows(x=torch.ones(0, 1, 4), y=torch.ones(0, dtype=torch.long)), r"no train rows"),
    ],
)
def test_own_data_is_checked(data: Dataset, mention: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=mention):
        run("fedavg", OWN, SHORT, data=data, network=Staged(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("network", "mention"),
    [
        (nn.Linear(4, 3), r"answers one input with \(1, 1, 3\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), r"cannot take inputs of shape \(1, 4\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 7)), r"expected \(1, 3\), a score a class"),
        (nn.Sequential(nn.Linear(4, 3)), r"answers one input with \(1, 1, 3\)"),
        (Network("mine", {"all": nn.Sequential(nn.Flatten(), nn.Linear(4, 7))}), "network 'mine'"),
    ],
)
def test_an_own_network_that_does_not_fit_is_refused(
    network: nn.Module | Network, mention: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=mention):
        run("fedavg", OWN, SHORT, data=blobs(), network=network, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_own_data_on_two_executors_is_the_same(tmp_path: Path) -> None:
    for executor, name in (("sequential", "sequential"), (TWO_WORKERS, "workers")):
        run("flea", OWN, SHORT, data=blobs(), network=Staged(), executor=executor, out=tmp_path / name)
    assert records(tmp_path / "workers") == records(tmp_path / "sequential")
    assert RunFolder(tmp_path / "workers").result() is not None


def test_importing_the_package_loads_torch_and_numpy_only() -> None:
    heavy = ("sklearn", "scipy", "PIL", "soundfile", "pyarrow", "matplotlib", "safetensors", "typer", "rich", "click")
    code = f"import fewfed, sys; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
