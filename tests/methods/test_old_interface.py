"""A method file written for fewfed 0.1 ends with a sentence that says what changed, never with a traceback."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from fewfed.changed import FUNCTIONS, MOVED, refuse_old_functions
from fewfed.cli import main
from fewfed.methods.registry import registered
from run_support import SMALL

HEAD = """
from dataclasses import dataclass
from fewfed.method import Method, Report
from fewfed.phase import Combine, Phase
from fewfed.wrapper import Wrapper
"""

PLAIN = """
@dataclass(frozen=True)
class Old(Method):
    name = "old"
    family = "test"
    paper = "none"
"""

WRAPPER = """
@dataclass(frozen=True)
class Old(Wrapper):
    name = "old"
    family = "test"
    paper = "none"
"""

FILES: dict[str, tuple[str, str]] = {
    "a broadcast that is told its phase": (
        HEAD + PLAIN + "    def broadcast(self, server, phase):\n        return {'model': server['model']}\n",
        "broadcast(self, server, phase): expected broadcast(self, server)",
    ),
    "an absorb that is told its phase": (
        HEAD + PLAIN + "    def absorb(self, server, phase, combined):\n        return server\n",
        "expected absorb(self, server, combined)",
    ),
    "personal that is told its phase": (
        HEAD + PLAIN + "    def personal(self, server, phase, client):\n        return {}\n",
        "expected personal(self, server, client)",
    ),
    "a phase without functions": (
        HEAD + PLAIN + "    def phases(self, clock):\n        return (Phase('train', clock.epochs),)\n",
        "as in Phase('train', self, clock.epochs)",
    ),
    "an upload without a role": (
        HEAD
        + PLAIN
        + "    def phases(self, clock):\n"
        + "        return (Phase('train', self, clock.epochs, {'model': Combine.MEAN}),)\n",
        "as in Upload(Combine.MEAN, Role.MODEL)",
    ),
    "what was drawn, by its old name": (
        HEAD + PLAIN + "    def loss(self, work, ctx, batch):\n        return {'task': batch.draw['x']}\n",
        "batch.draw is called batch.drawn",
    ),
    "a wrapper with functions of its own": (
        HEAD + WRAPPER + "    def loss(self, work, ctx, batch):\n        return self.inner.loss(work, ctx, batch)\n",
        "Old.loss would never be called: expected a wrapper's functions of a phase in a subclass of Around",
    ),
    **{
        f"an import of {old}": (
            (f"import {old}\n" if "." in old else f"from fewfed.plan import {old}\n") + HEAD + PLAIN,
            f"since 0.2 it is {new}",
        )
        for old, new in MOVED.items()
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_an_old_file_is_told_what_changed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sentence = FILES[kind]
    file = tmp_path / "old.py"
    file.write_text(source)
    command = ["fewfed", "run", str(file), *SMALL, "--executor", "sequential", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2, said
    assert "Traceback" not in said
    assert sentence in said
    assert "CHANGELOG.md says what changed in 0.2" in said


@pytest.mark.parametrize("new", MOVED.values())
def test_the_new_places_exist(new: str) -> None:
    module, name = (new, "") if "." in new else ("fewfed.plan", new)
    found = importlib.import_module(module)
    assert not name or hasattr(found, name)


def test_methods_of_the_package_pass_the_same_check() -> None:
    assert len(FUNCTIONS) == 13
    for name, cls in registered().items():
        refuse_old_functions(cls, name)
