"""Exported models answer as the model does, in programs that do not have fewfed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fewfed import Network, networks, tree
from fewfed.data.raw_inputs import RawInputs
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.runs.blueprint import Blueprint, NetworkRecipe
from fewfed.runs.scaling import InputScaling
from fewfed.trained.formats import FORMATS
from fewfed.trained.model import TrainedModel
from trained.trained_support import COLUMNS, constants, untrained

NETWORKS = {
    "mlp": (4,),
    "digits-cnn": (1, 8, 8),
    "lenet5": (1, 28, 28),
    "harnet": (1, 128, 3),
    "resnet9": (3, 32, 32),
    "unet": (1, 16, 16),
    "mobilenetv2": (3, 32, 32),
}


def raw(model: TrainedModel, rows: int) -> Tensor:
    """Inputs of a large range, every fifth number missing."""
    drawn = torch.Generator().manual_seed(7)
    x = 3 * torch.randn(rows, *model.shape, generator=drawn)
    return x.masked_fill(torch.rand(x.shape, generator=drawn) < 0.2, float("nan"))


def answers(model: TrainedModel, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(x).numpy()
    return found


SLOW = ("lenet5", "harnet", "resnet9", "mobilenetv2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in NETWORKS]
)
def test_onnx_answers_as_torch_does(name: str, tmp_path: Path) -> None:
    model = untrained(name, NETWORKS[name])
    session = onnxruntime.InferenceSession(model.export("onnx", tmp_path / "out"))
    for rows in (1, 6):
        x = raw(model, rows)
        expected, (found,) = answers(model, x), session.run(None, {"x": x.numpy()})
        assert np.abs(found - expected).max() <= 1e-4
        assert np.array_equal(found.argmax(1), expected.argmax(1))


LOADER = """
import sys
sys.modules["fewfed"] = None
import numpy as np, torch
for folder in sys.argv[1:]:
    model, x = torch.jit.load(folder + "/model.pt"), torch.from_numpy(np.load(folder + "/x.npy"))
    np.save(folder + "/y.npy", model(x).detach().numpy())
"""


def test_torchscript_is_loaded_without_fewfed(tmp_path: Path) -> None:
    models = {name: untrained(name, NETWORKS[name]) for name in ("mlp", "digits-cnn", "unet")}
    for name, model in models.items():
        model.export("torchscript", tmp_path / name)
        np.save(tmp_path / name / "x.npy", raw(model, 5).numpy())
    done = subprocess.run(
        [sys.executable, "-c", LOADER, *models], cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    for name, model in models.items():
        np.testing.assert_allclose(np.load(tmp_path / name / "y.npy"), answers(model, raw(model, 5)), atol=1e-5)


def test_state_dict_is_loaded_strictly_into_the_users_own_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net = Network.of(own)
    blueprint = untrained("mlp", (4,), network=NetworkRecipe("object", "custom")).blueprint
    model = TrainedModel(net, net.model(), blueprint)
    state = load_file(model.export("state_dict", tmp_path))
    again = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    again.load_state_dict(state, strict=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(again(x), model.network(x))


def test_safetensors_is_the_tree_of_the_run(tmp_path: Path) -> None:
    model = untrained("digits-cnn", (1, 8, 8))
    found = load_file(model.export("safetensors", tmp_path))
    expected = dict(tree.leaves(model.model))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("to", FORMATS)
def test_the_readme_says_how_to_load_it(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = untrained("mlp", (4,), 2, inputs=COLUMNS, class_names=("ill", "we|ll"))
    model.export(to, tmp_path)
    text = (tmp_path / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert "| 1 to 2 | `colour` | 1 for the one that it is, 0 for the others: `blue`, `red` |" in text
    assert "0. `ill`\n1. `we\\|ll`" in text
    assert "(rows, 4)" in text
    assert ("Scaling is inside" in text) == FORMATS[to].whole
    assert Blueprint.from_json(json.loads((tmp_path / "blueprint.json").read_text())).inputs == COLUMNS


def test_the_readme_of_images(tmp_path: Path) -> None:
    untrained("lenet5", (1, 28, 28), inputs=RawInputs("images")).export("safetensors", tmp_path)
    assert "(grey), 28 pixels high and 28 wide, each pixel in [0, 1]" in (tmp_path / "README.md").read_text()


def test_of_one_sites_model_nothing_of_the_others_is_written(tmp_path: Path) -> None:
    sites = InputScaling("site", sites={"north": constants(4, 1), "south": constants(4, 2)})
    like = untrained("mlp", (4,)).blueprint
    blueprint = Blueprint(**{**vars(like), "scaling": sites, "clients": 2, "sites": ("north", "south")})
    net = networks.build("mlp", (4,), 3, 0)
    TrainedModel(net, net.model(), blueprint, site="south").export("state_dict", tmp_path)
    text = (tmp_path / "blueprint.json").read_text()
    assert "north" not in text
    written = Blueprint.from_json(json.loads(text))
    assert written.scaling.common is not None
    assert torch.equal(written.scaling.common.mean, constants(4, 2).mean)
    assert "of site 'south'" in (tmp_path / "README.md").read_text()


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    model = untrained("mlp", (4,))
    model.export("safetensors", tmp_path)
    with pytest.raises(RunError, match="is there already"):
        model.export("safetensors", tmp_path)
    with pytest.raises(RunError, match=r"README.md' is there already"):
        model.export("state_dict", tmp_path)
    model.export("state_dict", tmp_path, force=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(RunError, match="holds a run"):
        model.export("safetensors", tmp_path / "run", force=True)
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        model.export("onxx", tmp_path)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(DataError, match=r"pip install 'fewfed\[onnx\]'"):
        untrained("mlp", (4,)).export("onnx", tmp_path)


class Decides(nn.Module):
    """Does something else with few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        return found if len(x) == 2 else found + 1


def test_a_network_that_decides_is_not_exported_wrongly(tmp_path: Path) -> None:
    net = Network("decides", {"all": Decides()})
    model = TrainedModel(net, net.model(), untrained("mlp", (4,)).blueprint)
    for to in ("torchscript", "onnx"):
        with pytest.raises(RunError, match=f"as {to}"):
            model.export(to, tmp_path / to)
        assert not (tmp_path / to).exists()


def test_a_model_in_training_stays_so(tmp_path: Path) -> None:
    model = untrained("digits-cnn", (1, 8, 8)).train()
    model.export("torchscript", tmp_path)
    assert model.training
    assert model.network.training
