"""Networks from a user's file: `net.py:build`."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fewfed import networks
from fewfed.errors import ConfigError
from fewfed.networks.from_file import Named, named_in
from support import same

FILE = """
import random
import numpy as np
import torch
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))

def swapped(classes, shape):
    return build(shape, classes)

def fixed():
    return build((3, 4), 5)

def one(*, classes=7):
    return build((3, 4), classes)

def placed(shape, classes, /):
    return build(shape, classes)

def rest(*args, **named):
    assert not args and not named
    return fixed()

def other(shape, classes, width=9):
    assert width == 9
    return build(shape, classes)

class Own(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.flat, self.last = nn.Flatten(), nn.Linear(12, classes)

    def forward(self, x):
        return self.last(self.flat(x))

made = fixed()

def foreign_draws():
    net = fixed()
    with torch.no_grad():
        net[1].weight += float(np.random.rand()) + random.random()
    return net

def asks(shape, width):
    return None

def fails(shape):
    return shape["no"]

def leaves():
    raise SystemExit(0)

def gives_class():
    return Own

def gives_nothing():
    pass

number = 3
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "net.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("a/net.py:build", Named("a/net.py", "build")),
        ("net.py", Named("net.py", "build")),
        ("net.py:", Named("net.py", "")),
        ("C:/a b/net.py:Net", Named("C:/a b/net.py", "Net")),
        ("mlp", None),
        ("package.module:build", None),
        ("net.pyc:build", None),
        ("", None),
    ],
)
def test_what_names_a_file(network: str, expected: Named | None) -> None:
    assert named_in(network) == expected


@pytest.mark.parametrize(
    "name", ["build", "swapped", "fixed", "one", "placed", "rest", "other", "Own", "made", "foreign_draws"]
)
def test_a_function_a_class_or_a_module_is_a_network_that_the_seed_determines(file: str, name: str) -> None:
    first, again, other = (networks.build(f"{file}:{name}", (3, 4), 5, seed) for seed in (0, 0, 1))
    assert same(first.model(), again.model())
    assert not same(first.model(), other.model())
    assert first.apply(first.model(), torch.zeros(2, 3, 4)).shape == (2, 5)
    assert first.penultimate == 1


def test_the_weights_are_those_torch_makes_from_the_seed(file: str) -> None:
    torch.manual_seed(4)
    expected = torch.nn.Linear(12, 5)
    found = networks.build(f"{file}:build", (3, 4), 5, 4).model()["params"]
    assert torch.equal(found["layer2.weight"], expected.weight)


def test_nobodys_random_numbers_are_touched(file: str) -> None:
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    expected = (torch.rand(1), np.random.rand(), random.random())
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    networks.build(f"{file}:foreign_draws", (3, 4), 5, 0)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_build_is_the_usual_name(file: str) -> None:
    assert networks.build(file, (3, 4), 5, 0).name == f"{file}:build"


@pytest.mark.parametrize(
    ("name", "mention"),
    [
        ("biuld", r"unknown name in '.*net\.py' 'biuld': did you mean 'build'\?"),
        ("", r"has no '': expected a Python file with a function"),
        ("asks", r"'asks' \(net\.py, line \d+\) asks for 'width': expected a function of 'shape'"),
        ("fails", r"'fails' \(net\.py, line \d+\) could not make a network: TypeError.*in fails, net\.py, line \d+"),
        ("leaves", r"'leaves' .* could not make a network: SystemExit"),
        ("gives_class", r"returned the class Own: expected an nn\.Module"),
        ("gives_nothing", r"returned nothing: expected an nn\.Module"),
        ("number", r"'number' in '.*' is a int: expected a function"),
        ("torch", r"'torch' in '.*' is a module: expected a function"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(file: str, name: str, mention: str) -> None:
    with pytest.raises(ConfigError, match=mention):
        networks.build(f"{file}:{name}", (3, 4), 5, 0)


def test_files_that_are_none_or_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no network file 'nowhere/net\.py': expected a Python file with"):
        networks.build("nowhere/net.py:build", (3, 4), 5, 0)
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\nnet = torch.nn.Linear(2)\n")
    with pytest.raises(
        ConfigError, match=r"network file '.*broken\.py' cannot be loaded: TypeError.*broken.py, line 2"
    ):
        networks.build(str(broken), (3, 4), 5, 0)
    broken.write_text("def build(:\n")
    with pytest.raises(ConfigError, match="cannot be loaded: SyntaxError"):
        networks.build(str(broken), (3, 4), 5, 0)
    broken.write_text("")
    with pytest.raises(ConfigError, match="has no 'build'"):
        networks.build(str(broken), (3, 4), 5, 0)
    with pytest.raises(ConfigError, match=r"unknown network 'my\.nets:build'.*path/to/net\.py:build"):
        networks.build("my.nets:build", (3, 4), 5, 0)
