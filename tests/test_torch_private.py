"""What torch does not promise to keep is used in one module only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import fewfed

SOURCE = Path(fewfed.__file__).parent
ALLOWED = SOURCE / "torch_private.py"


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_names(code: str) -> list[str]:
    """Names with an underscore that some code takes from torch, by whatever name it knows torch's modules."""
    module = ast.parse(code)
    known = dict(_imported(module))
    found = [name for name in known.values() if _below_torch(name)]
    for node in ast.walk(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [name for name in _named(node) if _below_torch(name)]
        elif isinstance(node, ast.Attribute):
            name = _written(node, known)
            found += [name] if name and _below_torch(name) else []
    return sorted(set(found))


def _below_torch(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(map(is_private, rest))


def _named(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What an import names, in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if node.module and not node.level else []


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that stand for something imported, and what it is called in full."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            yield from zip((alias.asname or alias.name for alias in node.names), _named(node), strict=False)


def _written(node: ast.expr, known: dict[str, str]) -> str | None:
    """`a.b.c` as one name in full, where `a` was imported."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        before = _written(node.value, known)
        return before and f"{before}.{node.attr}"
    return None


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch\ntorch._foreach_add([], 1)", ["torch._foreach_add"]),
        ("import torch\ntorch._C._functorch.x()", ["torch._C", "torch._C._functorch", "torch._C._functorch.x"]),
        ("import torch.fx._config", ["torch.fx._config"]),
        ("import torch as t\nt.nn._x", ["torch.nn._x"]),
        ("from torch._dynamo import config", ["torch._dynamo.config"]),
        (
            "def f():\n    from torch.nn.modules.batchnorm import _BatchNorm as B",
            ["torch.nn.modules.batchnorm._BatchNorm"],
        ),
        ("from torch import nn\nnn.functional._x", ["torch.nn.functional._x"]),
        ("from torch.nn import functional as F\nF._x", ["torch.nn.functional._x"]),
        ("import torch\ntorch.__version__, torch.nn.Module", []),
        ("import numpy\nnumpy._core", []),
        ("class A:\n    def f(self):\n        return self._x", []),
        ("from ._torch import _x", []),
    ],
)
def test_private_names_are_seen_however_they_are_written(code: str, found: list[str]) -> None:
    assert private_names(code) == found


def test_only_one_module_uses_what_torch_may_change() -> None:
    users = {str(path.relative_to(SOURCE)): private_names(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    assert users.pop(str(ALLOWED.relative_to(SOURCE)))
    assert {path: names for path, names in users.items() if names} == {}


def test_only_one_module_looks_inside_torchs_modules() -> None:
    inside = {name for name in vars(nn.Module()) if is_private(name)}
    users = {
        str(path.relative_to(SOURCE)): node.attr
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        # What is called `self` are fewfed's own classes, which are no modules.
        if isinstance(node, ast.Attribute) and node.attr in inside and ast.unparse(node.value) != "self"
    }
    assert list(users) == [str(ALLOWED.relative_to(SOURCE))]
