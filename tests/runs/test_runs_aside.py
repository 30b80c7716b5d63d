"""On a machine with a GPU the process that forks runs computes no gradient; here it is made to believe in one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewfed import Training, advise, compare, tune
from fewfed.errors import ConfigError, RunError
from fewfed.runs import aside
from run_support import small

Patch = pytest.MonkeyPatch

QUICK = Training(epochs=1, batch=8)
FILE = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 8), nn.ReLU(), nn.Linear(8, classes))
"""


def own() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


class Branches(nn.Module):
    """No nn.Sequential: its stages are only known to be stages after gradients were compared."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)))  # type: ignore[no-any-return]


@pytest.fixture
def as_on_a_gpu(monkeypatch: Patch) -> None:
    """What torch does there: after the first gradient of a process, processes forked from it can compute none."""
    spent: list[int] = []
    real = torch.autograd.grad

    def grad(*args: Any, **options: Any) -> Any:
        if spent and spent[0] != os.getpid():
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")
        spent[:] = [os.getpid()]
        return real(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(aside, "has_gpu", lambda: True)


def refusing(message: str, **about: Any) -> None:
    raise ConfigError(message, **about)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("network", ["module", "branches", "file"])
def test_a_comparison_of_an_own_network_runs(tmp_path: Path, network: str) -> None:
    (tmp_path / "net.py").write_text(FILE)
    choices: dict[str, nn.Module | str] = {
        "module": own(),
        "branches": Branches(),
        "file": f"{tmp_path / 'net.py'}:build",
    }
    given = choices[network]
    found = compare(["fedavg", "fedprox"], small(executor="sequential"), QUICK, network=given, out=tmp_path / "out")
    assert not found.failed
    assert len(found.named) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_search_over_an_own_network_runs(tmp_path: Path) -> None:
    found = tune(
        ["fedprox"], {"mu": [0.1, 1.0]}, small(executor="sequential"), QUICK, network=Branches(), out=tmp_path / "out"
    )
    assert not found.comparison.failed


@pytest.mark.usefixtures("as_on_a_gpu")
def test_advice_on_an_own_network_is_given(tmp_path: Path) -> None:
    experiment = small(executor="sequential", rounds=1)
    found = advise(
        experiment, {"epochs": 1, "lr": 0.01}, network=Branches(), methods=["fedlc"], minutes=2, seeds=1,
        out=tmp_path / "out", progress=False,
    )  # fmt: skip
    assert {row["method"] for row in found.table} == {"local", "fedavg", "fedlc"}


@pytest.mark.usefixtures("as_on_a_gpu")
def test_answers_come_over_as_they_are() -> None:
    assert aside.answered(lambda: {"who": os.getpid()})["who"] != os.getpid()
    assert aside.answered(lambda: None) is None


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_program_that_has_computed_gradients_is_told_so(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.sum(), x)
    with pytest.raises(RunError, match="has computed gradients already"):
        compare(["fedavg"], small(executor="sequential"), QUICK, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_errors_come_over_as_they_are() -> None:
    with pytest.raises(ConfigError) as raised:
        aside.checked(lambda: refusing("lr = -1: expected more", key="lr", value=-1))
    assert (str(raised.value), raised.value.key, raised.value.value) == ("lr = -1: expected more", "lr", -1)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_values_that_are_no_json_come_over_as_text() -> None:
    with pytest.raises(ConfigError) as raised:
        aside.checked(lambda: refusing("x" * 100_000, value=Path("net.py")))
    assert raised.value.value == "net.py"
    assert len(str(raised.value)) == 100_000


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("end", "said"), [(lambda: sys.exit(3), "SystemExit: 3"), (lambda: os._exit(4), r"exit 4")])
def test_a_check_that_ends_its_process_costs_a_sentence(end: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        aside.checked(end)


def test_without_a_gpu_a_check_is_made_here(monkeypatch: Patch) -> None:
    monkeypatch.setattr(aside, "has_gpu", lambda: False)
    seen: list[int] = []
    aside.checked(lambda: seen.append(os.getpid()))
    aside.refuse_spent_autograd()
    assert seen == [os.getpid()]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        aside.checked(lambda: None)
        with pytest.raises(ConfigError):
            aside.checked(lambda: refusing("no"))
    assert len(os.listdir("/proc/self/fd")) == before
