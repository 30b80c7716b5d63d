"""What the source of methods and of the engine may contain, and what importing the package may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fewfed
from fewfed.method import Method
from fewfed.methods.registry import registered

SOURCE = Path(fewfed.__file__).parent
WORDS = frozenset({"local", "single"})
"""Methods whose names are also words that people who know no method use: of local rows, say."""


def files(*rooms: str) -> list[Path]:
    """The source files of some rooms and of the rooms inside them."""
    found = sorted(file for room in rooms for file in (SOURCE / room).rglob("*.py"))
    assert {file.relative_to(SOURCE).parts[0] for file in found} == set(rooms)
    return found


def place(file: Path) -> str:
    return str(file.relative_to(SOURCE).with_suffix(""))


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def called(module: ast.Module) -> Iterator[str]:
    """What every call calls, as written."""
    return (ast.unparse(node.func) for node in ast.walk(module) if isinstance(node, ast.Call))


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def spoken(module: ast.Module) -> Iterator[str]:
    """Every name and text of the code, without its docstrings."""
    documents = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def method_names() -> set[str]:
    """Every method as a user writes it and as the code does."""
    return set(registered()) | {cls.__name__ for cls in registered().values()}


@pytest.mark.parametrize("file", [file for file in files("methods") if file.name != "registry.py"], ids=place)
def test_a_method_neither_trains_nor_moves_data_nor_touches_files(file: Path) -> None:
    calls = list(called(parsed(file)))
    assert [name for name in calls if name.split(".")[-1] in ("backward", "cuda", "open")] == []
    assert [name for name in calls if name.endswith(("optimizer.step", "autograd.grad"))] == []
    forbidden = ("os", "io", "pathlib", "shutil", "subprocess", "socket", "multiprocessing", "threading", "torch.optim")
    loaded = list(imported(parsed(file)))
    assert [name for name in loaded if any(name == one or name.startswith(f"{one}.") for one in forbidden)] == []


def test_the_shortest_method_and_the_papers_own_stay_short() -> None:
    assert lines(SOURCE / "methods" / "fedavg.py") < 25
    assert lines(SOURCE / "methods" / "flea.py") < 100


@pytest.mark.parametrize("file", files("engine"), ids=place)
def test_no_engine_file_names_a_method(file: Path) -> None:
    module = parsed(file)
    assert [name for name in imported(module) if name.startswith("fewfed.methods")] == []
    theirs = {"local"} if place(file) == "engine/executors/ray/cluster" else set()  # Ray's word for a new cluster.
    assert method_names() & set(spoken(module)) == theirs


@pytest.mark.parametrize("file", files("diagnostics", "runs"), ids=place)
def test_what_runs_and_examines_methods_knows_them_by_the_registry_alone(file: Path) -> None:
    module = parsed(file)
    loaded = [name for name in imported(module) if name.startswith("fewfed.methods")]
    assert [name for name in loaded if not name.startswith("fewfed.methods.registry.")] == []
    if place(file) != "runs/candidates":  # The list of what advice tries is all that names methods.
        assert (method_names() - WORDS) & set(spoken(module)) == set()


DEFENCES = [cls for cls in registered().values() if cls.family == "defence"]


@pytest.mark.parametrize("cls", DEFENCES, ids=lambda cls: cls.name)
def test_no_defence_names_a_method(cls: type[Method]) -> None:
    """What it is around without brackets is said once, for all of them, in `parts/protection.py`."""
    module = parsed(SOURCE / "methods" / f"{cls.name}.py")
    loaded = [name for name in imported(module) if name.startswith("fewfed.methods")]
    assert [name for name in loaded if not name.startswith("fewfed.methods.parts.")] == []
    assert (method_names() - {cls.name, cls.__name__}) & set(spoken(module)) == set()


def test_the_rules_reach_files_in_rooms_inside_rooms() -> None:
    engine, methods = ({place(file) for file in files(room)} for room in ("engine", "methods"))
    assert {"engine/loop", "engine/executors/cuda/lane", "engine/executors/workers/pool"} <= engine
    assert {"methods/fedavg", "methods/parts/augmentation"} <= methods


def test_importing_the_package_loads_torch_and_numpy_only() -> None:
    heavy = ("sklearn", "typer", "rich", "safetensors", "matplotlib", "pandas", "scipy", "PIL", "soundfile", "pyarrow")
    program = (
        "import sys, fewfed, fewfed.methods.registry as registry; registry.registered(); "
        f"print(*[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
