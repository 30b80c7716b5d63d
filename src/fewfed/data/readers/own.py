"""A user's own rows, whatever file they came in, made into a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples, checked
from fewfed.data.readers import prepare
from fewfed.data.readers.holdout import hold_out
from fewfed.data.readers.inputs import check_finite
from fewfed.data.readers.labels import class_ids, group_ids
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.errors import DataError


@dataclass(frozen=True)
class Part:
    """Inputs, labels as written and natural groups as written, row by row."""

    x: Tensor
    y: np.ndarray
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)

    def rows(self, index: np.ndarray) -> Part:
        return Part(
            self.x[torch.from_numpy(index)], self.y[index], {name: ids[index] for name, ids in self.groups.items()}
        )


def own_dataset(
    name: str, train: Part, test: Part | None, options: DataOptions, seed: int, class_names: tuple[str, ...] = ()
) -> Dataset:
    """Check the rows, hold out a test part where there is none, number classes and groups, and scale."""
    is_image = train.x.ndim == 4
    refuse_unusable(options, name, "image" if is_image else "other")
    parts = [train] if test is None else [train, test]
    for part in parts:
        _check_lengths(name, part)
        check_finite(name, part.x)
    labels = class_ids(name, [part.y for part in parts], options.classes, class_names)
    numbered = [dataclasses.replace(part, y=ids) for part, ids in zip(parts, labels.parts, strict=True)]
    if len(numbered) == 1:
        kept, held = hold_out(numbered[0].y, options.test_fraction, seed)
        if not len(held):
            raise DataError(
                f"data '{name}' has {len(train.y)} rows of {labels.classes} classes, too few to hold any out for "
                "testing: expected at least two rows of some class, or a test part of its own"
            )
        numbered = [numbered[0].rows(kept), numbered[0].rows(held)]
    groups = {key: _numbered_groups(key, numbered) for key in numbered[0].groups}
    dataset = checked(
        Dataset(
            name=name,
            train=Examples(numbered[0].x, torch.from_numpy(numbered[0].y)),
            test=Examples(numbered[1].x, torch.from_numpy(numbered[1].y)),
            classes=labels.classes,
            class_names=labels.names,
            groups={key: ids for key, (ids, _, _) in groups.items()},
            group_names={key: names for key, (_, _, names) in groups.items()},
            test_groups={key: held for key, (_, held, _) in groups.items() if held is not None},
        )
    )
    return _finished(dataset, is_image, options, seed)


def _numbered_groups(key: str, parts: list[Part]) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """Ids of the training rows, of the test rows where these are known, and the groups' names."""
    train, test = parts[0].groups[key], parts[1].groups.get(key)
    if test is None:
        ids, names = group_ids(f"'{key}' ids", train)
        return ids, None, names
    if {train.dtype.kind, test.dtype.kind} & set("mM") and train.dtype.kind != test.dtype.kind:
        raise DataError(f"'{key}' ids are {train.dtype} in train but {test.dtype} in test; expected the same")
    ids, names = group_ids(f"'{key}' ids", np.concatenate([train, test]))
    return ids[: len(train)], ids[len(train) :], names


def _finished(dataset: Dataset, is_image: bool, options: DataOptions, seed: int) -> Dataset:
    train, test = dataset.train, dataset.test
    if not is_image:
        return dataclasses.replace(dataset, scaling=prepare.constants(train.x, options))
    train_x, test_x, scaling = prepare.images(train.x, test.x, options, seed)
    return dataclasses.replace(dataset.with_inputs(train_x, test_x), scaling=scaling)


def _check_lengths(name: str, part: Part) -> None:
    if len(part.x) != len(part.y):
        raise DataError(f"data '{name}': {len(part.x)} inputs but {len(part.y)} labels; expected as many of each")
    for group, ids in part.groups.items():
        if ids.ndim != 1 or len(ids) != len(part.y):
            raise DataError(
                f"data '{name}': '{group}' has shape {ids.shape} for {len(part.y)} rows; expected one a row"
            )
