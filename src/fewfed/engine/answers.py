"""What the functions of a client's turn return, checked: a method is told which function returned what instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.errors import RunError
from fewfed.method import Report


def refuse_odd_rows(data: Any) -> None:
    """Raise where `data` returned no rows."""
    if not isinstance(data, Examples):
        raise RunError(f"data: its result is {_kind(data)}: expected Examples")


def refuse_odd_work(work: Any, steps: int) -> None:
    """Raise where `begin` returned no work tree, or one whose parameters cannot be trained where steps are taken."""
    _refuse_no_tree("begin", work, "result")
    if not steps:
        return
    if not isinstance(work.get("params"), Mapping):
        raise RunError("begin: its result has no tree 'params': expected the named tensors that are trained")
    for name, leaf in work["params"].items():
        if not isinstance(leaf, Tensor):
            raise RunError(f"begin: its result 'params' '{name}' is {_kind(leaf)}: expected a tensor")
        if not leaf.is_floating_point():
            raise RunError(f"begin: its result 'params' '{name}' is {leaf.dtype}: expected floating-point numbers")


def refuse_odd_draws(drawn: Any) -> None:
    """Raise where `draw` returned no tree."""
    _refuse_no_tree("draw", drawn, "result")


def refuse_odd_terms(terms: Any, observed: frozenset[str]) -> None:
    """Raise where `loss` returned no named terms, each one number, of which some are minimised."""
    if not isinstance(terms, Mapping):
        raise RunError(f"loss: its result is {_kind(terms)}: expected named terms, as in {{'task': ...}}")
    for name, value in terms.items():
        if not isinstance(name, str):
            raise RunError(f"loss: a term is named {name!r}: expected a text")
        if not isinstance(value, Tensor):
            raise RunError(f"loss: its term '{name}' is {_kind(value)}: expected a tensor")
        if value.numel() != 1:
            raise RunError(f"loss: its term '{name}' has shape {tuple(value.shape)}: expected one number")
    if not terms.keys() - observed:
        raise RunError("loss: none of its terms is minimised: expected at least one that is not only observed")


def refuse_constant(total: Tensor) -> None:
    """Raise where what is minimised has no gradient."""
    if not total.requires_grad:
        raise RunError("loss: it does not depend on the parameters: expected a loss that is computed from them")


def refuse_odd_gradient(found: Any, params: Mapping[str, Tensor]) -> None:
    """Raise where `gradient` did not return a direction for every parameter, and the terms."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise RunError(f"gradient: its result is {_kind(found)}: expected a pair, directions and loss terms")
    directions, terms = found
    if not isinstance(directions, Mapping):
        raise RunError(f"gradient: it has no directions but {_kind(directions)}: expected a tensor a parameter")
    for name, leaf in params.items():
        direction = directions.get(name)
        if not isinstance(direction, Tensor):
            raise RunError(f"gradient: it has no direction for '{name}' but {_kind(direction)}: expected a tensor")
        if direction.shape != leaf.shape:
            shapes = f"{tuple(direction.shape)}: expected {tuple(leaf.shape)}"
            raise RunError(f"gradient: its direction for '{name}' has shape {shapes}, as the parameter has")
    for name in directions.keys() - params.keys():
        raise RunError(f"gradient: it has a direction for '{name}', which is no parameter: expected none")
    _refuse_no_terms(terms)


def refuse_odd_report(report: Any) -> None:
    """Raise where `end` did not return a report whose upload is a tree: whoever looks at it counts on that."""
    if not isinstance(report, Report):
        raise RunError(f"end: its result is {_kind(report)}: expected a Report")
    _refuse_no_tree("end", report.upload, "upload")


def _refuse_no_terms(terms: Any) -> None:
    if not isinstance(terms, Mapping):
        raise RunError(f"gradient: its loss terms are {_kind(terms)}: expected named terms")
    for name, value in terms.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise RunError(f"gradient: its loss term '{name}' is {_kind(value)}: expected a tensor of one number")


def _refuse_no_tree(function: str, value: Any, what: str) -> None:
    if not isinstance(value, Mapping):
        raise RunError(f"{function}: its {what} is {_kind(value)}: expected a dictionary of tensors")
    for name, part in value.items():
        if not isinstance(part, Tensor):
            _refuse_no_tree(function, part, f"{what} '{name}'")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor) and value.dim():
        return f"a Tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" if value is not None else "nothing"
