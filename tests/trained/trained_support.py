"""Helpers for tests of trained models: one without a run, and a small run on a table of sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fewfed import Dataset, Examples, networks, tree
from fewfed.data.raw_inputs import InputColumn, RawInputs
from fewfed.data.scaling import Scaling
from fewfed.runs.blueprint import Blueprint, NetworkRecipe
from fewfed.runs.scaling import InputScaling
from fewfed.trained.model import TrainedModel

SITES = ("north", "south", "west")
COLUMNS = RawInputs("table", (InputColumn("age"), InputColumn("colour", ("blue", "red")), InputColumn("dose")))
"""Three columns that are four numbers."""


def constants(width: int, seed: int = 0) -> Scaling:
    """Means, deviations and what stands in for missing values, all different."""
    drawn = torch.Generator().manual_seed(seed)
    return Scaling(
        torch.randn(width, generator=drawn),
        torch.rand(width, generator=drawn) + 0.5,
        torch.randn(width, generator=drawn),
    )


def untrained(name: str, shape: tuple[int, ...], classes: int = 3, **changes: Any) -> TrainedModel:
    """A network by name whose every weight and buffer was moved, with filling and scaling."""
    net = networks.build(name, shape, classes, 0)
    drawn = torch.Generator().manual_seed(1)
    first = net.model()
    model = {
        "params": tree.map(lambda leaf: leaf + 0.05 * torch.randn(leaf.shape, generator=drawn), first["params"]),
        "buffers": tree.map(lambda leaf: leaf + torch.rand(leaf.shape, generator=drawn), first["buffers"]),
    }
    made: dict[str, Any] = {
        "task": "segmentation" if name == "unet" else "classification",
        "outputs": classes,
        "class_names": tuple(f"class {number}" for number in range(classes)),
        "shape": shape,
        "inputs": None,
        "scaling": InputScaling("pooled", constants(shape[0])),
        "network": NetworkRecipe("built-in", name),
        "clients": 1,
    }
    return TrainedModel(net, model, Blueprint(**{**made, **changes}))


def patients() -> Dataset:
    """A table of three sites with a column of categories, whose labels follow from the inputs."""
    random = np.random.default_rng(0)
    rows = 90
    age, dose = random.uniform(20, 90, rows), random.uniform(0, 1, rows)
    colour = random.integers(2, size=rows)
    x = np.stack([age, colour == 0, colour == 1, dose], axis=1).astype(np.float32)
    y = (age / 90 + dose > 1).astype(np.int64)
    sites = np.arange(rows) % 3
    train, test = np.arange(rows) < 60, np.arange(rows) >= 60
    return Dataset(
        "patients",
        Examples(torch.from_numpy(x[train]), torch.from_numpy(y[train])),
        Examples(torch.from_numpy(x[test]), torch.from_numpy(y[test])),
        2,
        ("ill", "well"),
        groups={"client": sites[train]},
        group_names={"client": SITES},
        test_groups={"client": sites[test]},
        inputs=COLUMNS,
    )


def cells_of(data: Dataset) -> dict[str, list[Any]]:
    """The test rows of `patients` as columns of a file."""
    x, y = data.test.x, data.test.y
    return {
        "id": [f"p{row}" for row in range(len(y))],
        "dose": x[:, 3].tolist(),
        "colour": ["blue" if blue else "red" for blue in x[:, 1].tolist()],
        "label": [data.class_names[label] for label in y.tolist()],
        "age": x[:, 0].tolist(),
        "client": [SITES[site] for site in data.test_groups["client"]],
    }
