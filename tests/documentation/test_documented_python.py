"""The Python of the documents is run, shortened, page by page, from top to bottom."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from documented_files import own_network

from documents import DOCUMENTS, ROOT, code, name_of


@dataclass(frozen=True)
class Python:
    """How the Python of a page is run: what stands before it, what is shortened, which blocks cannot be run and why."""

    before: str = ""
    files: tuple[Callable[[Path], None], ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)


FORTY = {"clients=40, cohort=8, rounds=30": "clients=6, cohort=3, rounds=1"}
TINY = "experiment = Experiment(clients=6, cohort=3, rounds=1, split='qua:2')\n"
DOORS = "import torch\nfrom torch import nn\nfrom fewfed import Experiment, Training, run\n" + TINY
OWN_NETWORK = """
class MyNet(nn.Sequential):
    def __init__(self):
        super().__init__()
        self.add_module("flat", nn.Flatten())
        self.add_module("head", nn.Linear(64, 10))
"""
PYTHON = {
    "README.md": Python(
        "import torch\n",
        short={
            **FORTY,
            "seeds=3": "seeds=1",
            "torch.nn.Sequential(...)": "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), "
            "torch.nn.ReLU(), torch.nn.Linear(32, 10))",
        },
        left_out={2: "FedProx: test_documents.py compares it with the real one"},
    ),
    "docs/start.md": Python(short=FORTY),
    "docs/advise.md": Python(
        short={'"clients": 10}': '"clients": 4, "rounds": 1, "network": "mlp"}, methods=["fedlc"], seeds=1'}
    ),
    "docs/own_data.md": Python(),
    "docs/report.md": Python(short={'"clients": 10, "rounds": 3': '"clients": 6, "cohort": 3, "rounds": 1'}),
    "docs/notebook.md": Python(
        "import numpy as np\nx, y = np.random.default_rng(0).random((30, 8)), ['ill', 'well', 'ill'] * 10\n"
        "clients, test = {'north': (x, y), 'south': (x, y)}, (x, y)\n",
        short={'rounds=30, training={"epochs": 2}': 'rounds=1, training={"epochs": 1}'},
    ),
    "docs/model.md": Python(short=FORTY),
    "docs/metrics.md": Python(short={"clients=20, rounds=5": "clients=6, rounds=1"}),
    "docs/diagnostics.md": Python(short={'split="qua:2"': 'split="qua:2", clients=6, cohort=3, rounds=1'}),
    "docs/privacy.md": Python(
        DOORS + "run('flea', {'clients': 6, 'cohort': 3, 'rounds': 1, 'record': 'packets'}, "
        "out='runs/flea-digits-qua-2-seed0')\n"
    ),
    "docs/speed.md": Python(left_out={0: "it needs a GPU: tests/engine/test_engine_device.py runs such options"}),
    "docs/networks.md": Python(
        DOORS + OWN_NETWORK,
        (own_network,),
        {
            "network=MyNet())": 'network=MyNet(), out="runs/my-run")',
            'my-run/model.safetensors")': 'my-run/model.safetensors")\nmodule = MyNet()',
        },
        left_out={4: "timm is not installed"},
    ),
    "CONTRIBUTING.md": Python(left_out=dict.fromkeys(range(3), "methods: test_documents.py runs and examines them")),
    "docs/add_method.md": Python(),
}


def test_every_page_with_python_is_in_the_table() -> None:
    assert {name_of(page) for page in DOCUMENTS if code(page, "python")} == set(PYTHON)


@pytest.mark.parametrize("page", PYTHON)
def test_what_is_left_out_is_there(page: str) -> None:
    assert set(PYTHON[page].left_out) <= set(range(len(code(ROOT / page, "python"))))


@pytest.mark.parametrize("page", PYTHON)
def test_python_of_the_documents_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, parts = PYTHON[page], code(ROOT / page, "python")
    text = "\n".join(part for number, part in enumerate(parts) if number not in case.left_out)
    for long, short in case.short.items():
        assert long in text
        text = text.replace(long, short)
    for part in parts:
        compile(part, page, "exec")
    for write in case.files:
        write(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)  # Dataclasses look their module up.
    exec(compile(case.before + text, page, "exec"), vars(module))


def test_the_method_of_the_guide_is_that_of_the_contributors() -> None:
    (short,) = code(ROOT / "docs" / "add_method.md", "python")
    (whole,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if 'name = "anchored"' in block)
    assert short == whole.partition("\n\n")[2]
