"""A data set in one file, exactly as it is in memory: for processes and machines that cannot be handed the object."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples, checked
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.scaling import Scaling
from fewfed.errors import DataError

_FORMAT = "fewfed data 1"
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError)
"""What a description of the wrong shape can raise."""


def save(dataset: Dataset, path: Path) -> None:
    """Write a data set; `read` gives it back bit for bit."""
    from safetensors.torch import save_file

    groups = {"groups": dataset.groups, "test_groups": dataset.test_groups}
    about = {
        "name": dataset.name,
        "classes": dataset.classes,
        "class_names": list(dataset.class_names),
        "group_names": {name: list(names) for name, names in dataset.group_names.items()},
        "note": dataset.note,
        "task": dataset.task,
        "inputs": None if dataset.inputs is None else dataset.inputs.as_json(),
        "missing": dataset.missing,
        "scaling": None if dataset.scaling is None else dataset.scaling.as_json(),
        "is_scaled": dataset.is_scaled,
        **{part: list(found) for part, found in groups.items()},
    }
    tensors = {
        "train.x": dataset.train.x,
        "train.y": dataset.train.y,
        "test.x": dataset.test.x,
        "test.y": dataset.test.y,
        # By number: a group may have any name.
        **{
            f"{part}.{number}": torch.as_tensor(ids)
            for part, found in groups.items()
            for number, ids in enumerate(found.values())
        },
    }
    # Copies, since the format refuses tensors that share memory.
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": _FORMAT, "about": json.dumps(about)})


def read(path: Path) -> Dataset:
    """The data set of a file that `save` wrote, checked as a user's own is."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(f"there is no data file '{path}': expected one that a recipe was made with")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise DataError(f"'{path}' holds something else: expected data saved for a recipe ({_FORMAT})")
            about: dict[str, Any] = json.loads(metadata["about"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return checked(_dataset(about, tensors))
    except (SafetensorError, *_DAMAGE) as error:
        raise DataError(f"'{path}' is damaged ({type(error).__name__}: {error}): save the data again") from error


def _dataset(about: dict[str, Any], tensors: dict[str, Tensor]) -> Dataset:
    groups = {
        part: {name: tensors[f"{part}.{number}"].numpy() for number, name in enumerate(about[part])}
        for part in ("groups", "test_groups")
    }
    return Dataset(
        about["name"],
        Examples(tensors["train.x"], tensors["train.y"]),
        Examples(tensors["test.x"], tensors["test.y"]),
        operator.index(about["classes"]),
        tuple(about["class_names"]),
        groups["groups"],
        {name: tuple(names) for name, names in about["group_names"].items()},
        about["note"],
        about["task"],
        groups["test_groups"],
        None if about["inputs"] is None else RawInputs.from_json(about["inputs"]),
        None if about["scaling"] is None else Scaling.from_json(about["scaling"]),
        bool(about["is_scaled"]),
        bool(about["missing"]),
    )
