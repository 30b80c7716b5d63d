"""What the source of methods and of the engine may contain, and what importing the package may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fewfed
from fewfed.methods.registry import registered

SOURCE = Path(fewfed.__file__).parent
METHOD_FILES = sorted(file for file in (SOURCE / "methods").glob("*.py") if file.name != "registry.py")
ENGINE_FILES = sorted((SOURCE / "engine").glob("*.py"))


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


@pytest.mark.parametrize("file", METHOD_FILES, ids=lambda file: file.stem)
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


@pytest.mark.parametrize("file", ENGINE_FILES, ids=lambda file: file.stem)
def test_no_engine_file_names_a_method(file: Path) -> None:
    module = parsed(file)
    assert [name for name in imported(module) if name.startswith("fewfed.methods")] == []
    names = {name for name, cls in registered().items()} | {cls.__name__ for cls in registered().values()}
    assert names & set(spoken(module)) == set()


def test_importing_the_package_loads_torch_and_numpy_only() -> None:
    heavy = ("sklearn", "typer", "rich", "safetensors", "matplotlib", "pandas", "scipy", "PIL", "soundfile", "pyarrow")
    program = (
        "import sys, fewfed, fewfed.methods.registry as registry; registry.registered(); "
        f"print(*[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
