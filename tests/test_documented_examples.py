"""Examples of the documents are run, shortened: all Python, and the commands of the pages a newcomer types from and of
guides that need nothing but a machine.

Commands of other pages are parsed and their fields looked up (`test_documents.py`).
"""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from documents import PAGES, ROOT, blocks, code, commands_in, name_of
from run_support import called

TYPED_FROM = ("README.md", "docs/start.md", "docs/own_data.md")
"""Pages whose commands are run, one after another, in one folder each."""
ELSEWHERE = {
    "fewfed serve ": "tests/deploy/test_deploy_real.py",
    "fewfed site ": "tests/deploy/test_deploy_real.py",
    "fewfed check ": "tests/conformance/test_conformance_check.py",
    "fewfed watch ": "tests/report/live/test_live_page.py",
    "fewfed new ": "tests/scaffold/test_scaffold_new.py",
}
"""Commands that need other machines or take long, and the tests that run them."""
TRAINING = ("run", "compare", "tune", "frontier", "diagnose")
SMALL = ("--rounds", "1", "--epochs", "2")
FEW = ("--clients", "6", "--cohort", "3")
SOME = ("--clients", "8", "--cohort", "8")
SHORTENED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TRAINING, SMALL),
    "attack": ("--effort", "0.05"),
    "advise": ("--minutes", "0.3"),
    "reproduce": ("--from", str(ROOT / "reproduce")),
}
"""What is added to a command, so that it takes a second: of an option that is given twice the last one counts."""
INSTEAD = {
    "--seeds 5": "--seeds 1",
    "--seeds 3": "--seeds 1",
    "lr=0.001,0.01,epochs=1,5": "lr=0.001,0.01",
    "record_rounds=1,10-12,last": "record_rounds=1,last",
    "--effort 3 --round 10": "--round 1",
    "--vary grouped.k=1,2,5 --vary decorrelate=0,3": "--vary grouped.k=1,2",
}
GUIDES: Mapping[str, tuple[str, ...]] = {
    "docs/add_method.md": (),
    "docs/advise.md": (),
    "docs/attacks.md": ("fewfed run flea --record packets --out runs/flea",),
    "docs/budget.md": (),
    "docs/budget_guide.md": (),
    "docs/data.md": (),
    "docs/defences.md": (),
    "docs/metrics.md": (),
    "docs/policy.md": (),
    "docs/privacy.md": (),
    "docs/report.md": tuple(f"fewfed compare fedavg fedprox --out runs/{one}" for one in ("demo", "compare", "other")),
    "docs/robust.md": (),
    "docs/trackers.md": (),
    "docs/training.md": (),
    "docs/which.md": (),
}
"""Further pages whose commands are run, and what was run before by somebody who reads them."""
AGAIN = (
    "fewfed run flea --executor workers",
    "fewfed run flea --policy",
    "fewfed advise --data lung.csv",
    "fewfed compare fedavg flea --data patients.csv",
)
"""Commands whose folder an earlier line of the page has taken: a user types them on another day."""


def shortened(line: str, number: int) -> list[str]:
    for long, short in INSTEAD.items():
        line = line.replace(long, short)
    words = shlex.split(line)[1:]
    words += SHORTENED.get(words[0], ())
    if words[0] in TRAINING and "--site" not in line:
        words += SOME if "multi-krum" in line else FEW
    if line.startswith(AGAIN):
        words += ["--out", f"runs/again-{number}"]
    return words


def files_of_a_user(folder: Path) -> None:
    """What the pages take for granted: a table, new rows, a configuration, a method, what a site allows."""
    random = np.random.default_rng(0)
    rows = [
        f"{age:.3f},{dose:.3f},{'ill' if age > dose else 'well'},site-{number % 4}"
        for number, (age, dose) in enumerate(random.normal(size=(80, 2)))
    ]
    (folder / "patients.csv").write_text("\n".join(["age,dose,diagnosis,hospital", *rows, "1.0,,ill,site-0"]) + "\n")
    np.savez(folder / "new.npz", x=random.random((3, 1, 8, 8), dtype=np.float32))
    (folder / "experiment.toml").write_text('split = "qua:2"\n')
    (method,) = code(ROOT / "docs" / "add_method.md", "python")
    (folder / "my_method.py").write_text(method)
    (folder / "anchored.py").write_text(method)
    (folder / "policy.toml").write_text('roles = ["model", "features", "labels"]\n')


@pytest.mark.parametrize("page", TYPED_FROM)
def test_commands_of_the_first_pages_run_as_they_are_typed(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files_of_a_user(tmp_path)
    lines = commands_in(ROOT / page)
    if page == "docs/own_data.md":
        exec(blocks(ROOT / page)[0][1], {"__name__": "made"})  # Its table, in place of ours.
    assert len(lines) >= 5
    for number, line in enumerate(lines):
        if not line.startswith(tuple(ELSEWHERE)):
            ending, _, err = called(capsys, monkeypatch, *shortened(line, number))
            assert ending == 0, f"{line}\n{err}"
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_guides_run_as_they_are_typed(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files_of_a_user(tmp_path)
    table = tmp_path / "patients.csv"
    whole = [line for line in table.read_text().splitlines() if ",," not in line]
    table.write_text("\n".join(whole) + "\n")  # Pages that say nothing of missing values have none.
    renamed = [whole[0].replace("diagnosis,hospital", "dead_in_year,inst"), *whole[1:]]
    (tmp_path / "lung.csv").write_text("\n".join(renamed) + "\n")
    lines = commands_in(ROOT / page)
    assert lines
    for number, line in enumerate((*GUIDES[page], *lines)):
        if not line.startswith(tuple(ELSEWHERE)):
            ending, _, err = called(capsys, monkeypatch, *shortened(line, number))
            assert ending == 0, f"{line}\n{err}"


@dataclass(frozen=True)
class Python:
    """How the Python of a page is run: what stands before it, what is shortened, which blocks cannot be run and why."""

    before: str = ""
    short: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)


FORTY = {"clients=40, cohort=8, rounds=30": "clients=6, cohort=3, rounds=1"}
TINY = "experiment = Experiment(clients=6, cohort=3, rounds=1, split='qua:2')\n"
DOORS = "import torch\nfrom torch import nn\nfrom fewfed import Experiment, Training, run\n" + TINY
OWN_NETWORK = '''
class MyNet(nn.Sequential):
    def __init__(self):
        super().__init__()
        self.add_module("flat", nn.Flatten())
        self.add_module("head", nn.Linear(64, 10))


FILE = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""
open("net.py", "w").write(FILE)
'''
PYTHON = {
    "README.md": Python(
        "import torch\n",
        {
            **FORTY,
            "seeds=3": "seeds=1",
            "torch.nn.Sequential(...)": "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), "
            "torch.nn.ReLU(), torch.nn.Linear(32, 10))",
        },
        {2: "FedProx: test_documents.py compares it with the real one"},
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
        {'rounds=30, training={"epochs": 2}': 'rounds=1, training={"epochs": 1}'},
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
        {
            "network=MyNet())": 'network=MyNet(), out="runs/my-run")',
            'my-run/model.safetensors")': 'my-run/model.safetensors")\nmodule = MyNet()',
        },
        {4: "timm is not installed"},
    ),
    "CONTRIBUTING.md": Python(left_out=dict.fromkeys(range(3), "methods: test_documents.py runs and examines them")),
    "docs/add_method.md": Python(),
}


def test_every_page_with_python_is_in_the_table() -> None:
    found = {name_of(page) for page in PAGES if code(page, "python")}
    assert found - {name for name in found if name.startswith("examples/")} == set(PYTHON)


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
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)  # Dataclasses look their module up.
    exec(compile(case.before + text, page, "exec"), vars(module))


def test_the_method_of_the_guide_is_that_of_the_contributors() -> None:
    (short,) = code(ROOT / "docs" / "add_method.md", "python")
    (whole,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if 'name = "anchored"' in block)
    assert short == whole.partition("\n\n")[2]
