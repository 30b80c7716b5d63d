"""A user's own files made into a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples, checked
from fewfed.data.readers import prepare
from fewfed.data.readers.holdout import hold_out, hold_out_within
from fewfed.data.readers.inputs import check_finite
from fewfed.data.readers.labels import Labels, class_ids, group_ids
from fewfed.data.readers.missing import Masks, refuse_lost_sites, rows_used
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.data.readers.own_rows import Part, Rows
from fewfed.data.readers.roles import GROUPS
from fewfed.data.reading import Count, MissingCells, Reading, counts
from fewfed.errors import ConfigError, DataError


def own_dataset(name: str, rows: Rows, options: DataOptions, seed: int) -> Dataset:
    """Check the rows, hold out a test part where there is none, number classes and groups, and scale."""
    is_image = rows.parts[0].x.ndim == 4
    refuse_unusable(options, name, "image" if is_image else "other")
    for part in rows.parts:
        _check_lengths(name, part)
    if options.missing == "drop":
        rows = _without_holes(name, rows)
    for part in rows.parts:
        check_finite(name, part.x, missing=options.missing == "mean")
    labels = class_ids(name, [part.y for part in rows.parts], options.classes, rows.class_names)
    numbered = [dataclasses.replace(part, y=ids) for part, ids in zip(rows.parts, labels.parts, strict=True)]
    if options.test_data and not options.classes:
        _refuse_new_classes(numbered, labels, options)
    grouping = next((group for group in GROUPS if group in numbered[0].groups), "")
    parts, reading = _with_test_part(name, numbered, grouping, rows.reading, options, seed)
    groups = {key: _numbered_groups(key, parts) for key in parts[0].groups}
    missing = any(bool(torch.isnan(part.x).any()) for part in parts)
    if missing:
        _refuse_unfillable(name, parts[0], rows)
    dataset = Dataset(
        name=name,
        train=Examples(parts[0].x, torch.from_numpy(parts[0].y)),
        test=Examples(parts[1].x, torch.from_numpy(parts[1].y)),
        classes=labels.classes,
        class_names=labels.names,
        groups={key: found.train for key, found in groups.items()},
        group_names={key: found.names for key, found in groups.items()},
        test_groups={key: found.test for key, found in groups.items() if found.test is not None},
        inputs=rows.inputs,
        missing=missing,
        places=np.arange(len(parts[0].y)) if parts[0].places is None else parts[0].places,
    )
    return _finished(with_counts(checked(dataset), reading, grouping), is_image, options, seed)


def with_counts(dataset: Dataset, reading: Reading, grouping: str) -> Dataset:
    """The data set with how it was read, and rows of classes and sites counted. `grouping`: empty without sites."""
    sites: tuple[Count, ...] = ()
    if grouping:
        names = dataset.group_names[grouping]
        sites = counts(dataset.groups[grouping], dataset.test_groups.get(grouping), names)
    classes = (dataset.train.y.numpy(), dataset.test.y.numpy(), dataset.split_names)
    return dataclasses.replace(dataset, reading=reading.counted(classes, grouping, sites))


def _refuse_new_classes(parts: Sequence[Part], labels: Labels, options: DataOptions) -> None:
    """Raise where another file has a class that no training row has: it may well be a slip of the pen."""
    new = sorted(set(parts[1].y.tolist()) - set(parts[0].y.tolist()))
    if new:
        name = labels.names[new[0]] if labels.names else str(new[0])
        raise DataError(
            f"{options.test_data} has {int((parts[1].y == new[0]).sum())} rows of a class '{name}' that the training "
            "rows lack: expected the same classes"
        )


def _without_holes(name: str, rows: Rows) -> Rows:
    """Without rows that have NaN among their inputs. Of tables such rows are gone already, and were counted."""
    holes = [torch.isnan(part.x.flatten(1)).any(1).numpy() for part in rows.parts]
    dropped = sum(int(found.sum()) for found in holes)
    if not dropped:
        return rows
    parts = []
    for part, found in zip(rows.parts, holes, strict=True):
        masks = Masks(f"data '{name}'", dict.fromkeys(part.groups, np.zeros(len(found), bool)), {"x": found})
        used = rows_used(masks, len(found), "drop")
        for group, ids in part.groups.items():
            refuse_lost_sites(masks, used, group, ids, "drop")
        parts.append(part.rows(np.flatnonzero(used)))
    missing = (*rows.reading.missing, MissingCells("x", dropped))
    reading = dataclasses.replace(rows.reading, missing=missing, dropped=rows.reading.dropped + dropped)
    return dataclasses.replace(rows, parts=parts, reading=reading)


def _with_test_part(
    name: str, parts: Sequence[Part], grouping: str, reading: Reading, options: DataOptions, seed: int
) -> tuple[list[Part], Reading]:
    """The training and the test part, and where the latter comes from."""
    whole = parts[0]
    if len(parts) > 1:
        if options.test_column:
            raise ConfigError(
                f"test_column = '{options.test_column}' marks test rows but data '{name}' has a test part: expected one"
            )
        found = Path(options.test_data).name if options.test_data else ""
        return list(parts), dataclasses.replace(reading, test_part="file" if found else "part", test_from=found)
    if whole.test is not None:
        if whole.test.all() or not whole.test.any():
            marked = "all rows" if whole.test.all() else "no row"
            raise DataError(
                f"data '{name}': column '{options.test_column}' marks {marked} for testing; expected some to train on "
                "and some to test on"
            )
        kept, held = np.flatnonzero(~whole.test), np.flatnonzero(whole.test)
        reading = dataclasses.replace(reading, test_part="column", test_from=options.test_column)
    elif grouping:
        sites, _ = group_ids(f"'{grouping}' ids", whole.groups[grouping])
        kept, held = hold_out_within(sites, whole.y, options.test_fraction, seed)
        reading = dataclasses.replace(reading, test_part="fraction of each site", fraction=options.test_fraction)
    else:
        kept, held = hold_out(whole.y, options.test_fraction, seed)
        reading = dataclasses.replace(reading, test_part="fraction", fraction=options.test_fraction)
    if not len(held):
        of = f"{len(np.unique(whole.groups[grouping]))} sites" if grouping else f"{len(np.unique(whole.y))} classes"
        raise DataError(
            f"data '{name}' has {len(whole.y)} rows of {of}, too few to hold any out for testing: expected at least "
            f"two rows of some {'site' if grouping else 'class'}, or a test part of its own (--test-data FILE)"
        )
    return [whole.rows(kept), whole.rows(held)], reading


@dataclass(frozen=True)
class _Groups:
    """Ids of the training rows, of the test rows where these are known, and the groups' names."""

    train: np.ndarray
    test: np.ndarray | None
    names: tuple[str, ...]


def _numbered_groups(key: str, parts: Sequence[Part]) -> _Groups:
    train, test = parts[0].groups[key], parts[1].groups.get(key)
    if test is None:
        ids, names = group_ids(f"'{key}' ids", train)
        return _Groups(ids, None, names)
    if {train.dtype.kind, test.dtype.kind} & set("mM") and train.dtype.kind != test.dtype.kind:
        raise DataError(f"'{key}' ids are {train.dtype} in train but {test.dtype} in test; expected the same")
    ids, names = group_ids(f"'{key}' ids", np.concatenate([train, test]))
    return _Groups(ids[: len(train)], ids[len(train) :], names)


def _finished(dataset: Dataset, is_image: bool, options: DataOptions, seed: int) -> Dataset:
    train, test = dataset.train, dataset.test
    if not is_image:
        return dataclasses.replace(dataset, scaling=prepare.constants(train.x, options))
    train_x, test_x, scaling = prepare.images(train.x, test.x, options, seed)
    return dataclasses.replace(dataset.with_inputs(train_x, test_x), scaling=scaling)


def _refuse_unfillable(name: str, train: Part, rows: Rows) -> None:
    """Raise where an input is missing in every training row: there is no mean to fill it in with."""
    empty = torch.isnan(train.x.flatten(1)).all(0)
    if not bool(empty.any()):
        return
    place = int(empty.nonzero()[0])
    widths = np.cumsum([column.width for column in rows.inputs.columns])
    known = int(np.searchsorted(widths, place, side="right"))
    column = f"column '{rows.inputs.columns[known].name}'" if known < len(widths) else f"input {place}"
    raise DataError(
        f"data '{name}': {column} holds no value in any training row, so there is nothing to fill it in with: leave it "
        "out with --ignore"
    )


def _check_lengths(name: str, part: Part) -> None:
    if len(part.x) != len(part.y):
        raise DataError(f"data '{name}': {len(part.x)} inputs but {len(part.y)} labels; expected as many of each")
    for group, ids in _per_row(part).items():
        if ids.ndim != 1 or len(ids) != len(part.y):
            raise DataError(
                f"data '{name}': '{group}' has shape {ids.shape} for {len(part.y)} rows; expected one a row"
            )


def _per_row(part: Part) -> Mapping[str, np.ndarray]:
    return part.groups if part.test is None else {**part.groups, "test": part.test}
