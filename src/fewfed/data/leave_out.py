"""Leave-one-client-out: one natural group trains nowhere, and its part of the test rows is what is tested on."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fewfed.data.examples import Dataset
from fewfed.data.splits import NATURAL
from fewfed.errors import ConfigError, did_you_mean


def leave_out(dataset: Dataset, grouping: str, wanted: str) -> Dataset:
    """The data set whose test part is one group's test rows and whose training part is every other training row.

    `wanted` is a group's name, or else the number its client has when nobody is left out. Test rows of other groups,
    and training rows of this one, are not used: the numbers then stand beside those of runs in which it trains. Where
    the group has no test rows, or the data does not say whose they are, its training rows are tested on.
    """
    if grouping not in NATURAL:
        raise ConfigError(
            f"leave_out = '{wanted}' needs clients that are natural groups: expected split "
            f"{', '.join(NATURAL[:-1])} or {NATURAL[-1]}, not '{grouping}'"
        )
    if grouping not in dataset.groups:
        known = ", ".join(sorted(dataset.groups)) or "none"
        raise ConfigError(
            f"leave_out = '{wanted}' with split '{grouping}': data '{dataset.name}' has no {grouping} ids "
            f"(its natural groups: {known}); use data that has them"
        )
    ids = dataset.groups[grouping]
    group = _group(dataset, grouping, wanted)
    if bool((ids == group).all()):
        raise ConfigError(
            f"leave_out = '{wanted}' leaves nobody to train: data '{dataset.name}' has only one {grouping}, "
            "expected at least two"
        )
    unseen, others = np.flatnonzero(ids == group), np.flatnonzero(ids != group)
    tested = dataset.test_groups.get(grouping, np.full(len(dataset.test), -1)) == group
    theirs = torch.from_numpy(np.flatnonzero(tested))
    tested_on = dataset.test.rows(theirs) if len(theirs) else dataset.train.rows(torch.from_numpy(unseen))
    which = "" if len(theirs) else ", its training rows: it has no test rows that are known"
    note = f"tested on the unseen {grouping} '{dataset.group_name(grouping, group)}'{which}"
    return dataclasses.replace(
        dataset,
        train=dataset.train.rows(torch.from_numpy(others)),
        test=tested_on,
        groups={name: members[others] for name, members in dataset.groups.items()},
        places=None if dataset.places is None else dataset.places[others],
        test_groups={grouping: np.full(len(tested_on), group)},
        note="; ".join(part for part in (dataset.note, note) if part),
    )


def _group(dataset: Dataset, grouping: str, wanted: str) -> int:
    present = [int(one) for one in np.unique(dataset.groups[grouping])]
    named = {dataset.group_name(grouping, one): one for one in present}
    if wanted in named:
        return named[wanted]
    if wanted.isdecimal() and len(wanted) < 20 and int(wanted) < len(present):
        return present[int(wanted)]
    numbers = f", or a client number from 0 to {len(present) - 1}"
    raise ConfigError(f"leave_out = '{wanted}': {did_you_mean(grouping, wanted, named)}{numbers}")
