"""Rows of several clients as a program has them, (x, y) pairs, as one data set with natural sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.raw_inputs import InputColumn, RawInputs
from fewfed.errors import DataError

NAME = "clients"
_PAIR = "expected (x, y), or Examples(x, y)"


def dataset_of(clients: Any, test: Any) -> tuple[Dataset, np.ndarray]:
    """The data set, and the labels as they were given, in the order of its classes."""
    named = _named(clients)
    columns = _columns({**{f"client '{name}'": given for name, given in named.items()}, "test": test})
    pairs = {name: _pair(given, f"client '{name}'", columns) for name, given in named.items()}
    last = _pair(test, "test", columns)
    shapes = {
        where: x.shape[1:] for where, (x, _) in (*((f"client '{n}'", p) for n, p in pairs.items()), ("test", last))
    }
    first = next(iter(shapes))
    for where, shape in shapes.items():
        if shape != shapes[first]:
            raise DataError(
                f"{where} has inputs of shape {tuple(shape)} and {first} of {tuple(shapes[first])}: expected the same"
            )
    given = [y for _, y in (*pairs.values(), last)]
    if len({_kind(y) for y in given}) > 1:
        raise DataError("some labels are numbers and some are texts: expected the same kind at all clients and in test")
    labels = np.unique(np.concatenate(given))
    if not len(labels):
        raise DataError("no client has a row, and test has none: expected some of two classes")
    if len(labels) < 2:
        raise DataError(f"every row has the label '{labels[0]!s:.60}': expected at least two classes")
    train = Examples(torch.cat([_inputs(x) for x, _ in pairs.values()]), _numbers(np.concatenate(given[:-1]), labels))
    sites = np.concatenate([np.full(len(y), number) for number, y in enumerate(given[:-1])])
    return Dataset(
        NAME,
        train,
        Examples(_inputs(last[0]), _numbers(last[1], labels)),
        len(labels),
        tuple(str(label) for label in labels.tolist()),
        groups={"site": sites.astype(np.int64)},
        group_names={"site": tuple(pairs)},
        inputs=RawInputs("table", tuple(map(InputColumn, columns))) if columns else None,
    ), labels


def _columns(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of columns, where somebody's rows are a table that has them: the same for all, in the order of the
    first. Without names, nobody could see that columns were exchanged."""
    found = {where: names for where, each in given.items() if (names := _names_in(each))}
    first = next(iter(found), "")
    for where, names in found.items():
        if len(set(names)) < len(names):
            raise DataError(f"{where} has two columns of the same name: expected each once")
        if set(names) != set(found[first]):
            odd = min(set(names) ^ set(found[first]))
            lacks, has = (where, first) if odd not in names else (first, where)
            raise DataError(f"{lacks} has no column '{odd:.60}', which {has} has: expected the same columns everywhere")
    return found.get(first, ())


def _names_in(given: Any) -> tuple[str, ...]:
    """Of the columns of one's inputs; nothing for an array."""
    x = given[0] if isinstance(given, (tuple, list)) and given else given
    names = getattr(x, "column_names", None)
    return tuple(str(name) for name in (getattr(x, "columns", ()) if names is None else names))


def _named(clients: Any) -> dict[str, Any]:
    """Clients by the names of their sites."""
    if isinstance(clients, Mapping):
        found = {str(name): given for name, given in clients.items()}
        if len(found) < len(clients):
            raise DataError("two clients have the same name: expected each once")
    elif isinstance(clients, Sequence) and not isinstance(clients, (str, bytes)):
        found = {str(number): given for number, given in enumerate(clients)}
    else:
        raise DataError(
            f"clients are a {type(clients).__name__}: expected a list of (x, y), or a dictionary of them by site"
        )
    if not found:
        raise DataError("there are no clients: expected at least one (x, y)")
    return found


def _pair(given: Any, where: str, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, the columns of a table in this order, and labels."""
    names = _names_in(given)
    if isinstance(given, Examples):
        given = (given.x, given.y)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise DataError(f"{where} is a {type(given).__name__}: {_PAIR}")
    if any(np.ma.is_masked(each) for each in given):
        raise DataError(f"{where} has masked values: expected a number for each, or rows without such values")
    try:
        x, y = (each.numpy(force=True) if isinstance(each, Tensor) else np.asarray(each) for each in given)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is no pair of arrays ({error!s:.100}): {_PAIR}") from error
    if x.dtype.kind == "O":
        x = _of_objects(x, names, where)
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where}: inputs are {x.dtype}: expected numbers")
    if names and x.ndim == 2:
        x = x[:, [names.index(name) for name in columns]]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(x) != len(y) or x.ndim < 2:
        raise DataError(f"{where}: inputs of shape {x.shape} and labels of {y.shape}: expected rows, and a label a row")
    return x, _labels(y, where)


def _of_objects(x: np.ndarray, names: Sequence[str], where: str) -> np.ndarray:
    """Numbers of several kinds, as a table has them whose columns are truth values and measurements."""
    numbers = (bool, int, float, np.number, np.bool_)
    odd = next((place for place, each in enumerate(x.ravel()) if not isinstance(each, numbers)), None)
    if odd is None:
        return x.astype(np.float64)
    column = f", column '{names[odd % x.shape[1]]:.60}'" if names and x.ndim == 2 else ""
    raise DataError(f"{where}: inputs{column} hold {str(x.ravel()[odd])!r:.60}: expected numbers")


def _labels(y: np.ndarray, where: str) -> np.ndarray:
    """Labels of a kind that can be told apart and sorted."""
    if y.dtype.kind == "O":
        y = np.array(y.tolist()) if len({type(label) for label in y.tolist()}) == 1 else y
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.floor(y)).all()):
        raise DataError(f"{where}: labels are no whole numbers: expected classes, as numbers or texts")
    if y.dtype.kind not in "biufU":
        raise DataError(f"{where}: labels are {y.dtype}: expected classes, as numbers or texts")
    return y


def _kind(y: np.ndarray) -> str:
    return "text" if y.dtype.kind == "U" else "number"


def _inputs(x: np.ndarray) -> Tensor:
    with np.errstate(over="ignore"):  # What is too large becomes infinite, which is refused where all rows are checked.
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def _numbers(y: np.ndarray, labels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.searchsorted(labels, y).astype(np.int64))
