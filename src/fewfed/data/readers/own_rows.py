"""A user's own rows, whatever file they came in, before they become a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.reading import Reading


@dataclass(frozen=True)
class Part:
    """Inputs, labels as written and natural groups as written, row by row."""

    x: Tensor
    y: np.ndarray
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    test: np.ndarray | None = None
    """Which rows are marked for testing, where something marks them."""
    places: np.ndarray | None = None
    """The number of each row in its file; None where none was left out so far."""

    def rows(self, index: np.ndarray) -> Part:
        return Part(
            self.x[torch.from_numpy(index)],
            self.y[index],
            {name: ids[index] for name, ids in self.groups.items()},
            None if self.test is None else self.test[index],
            index if self.places is None else self.places[index],
        )


@dataclass(frozen=True)
class Rows:
    """The training part and, where there is one of its own, the test part; and how they were read."""

    parts: Sequence[Part]
    inputs: RawInputs
    reading: Reading
    class_names: tuple[str, ...] = ()
    """What classes numbered from 0 are called, where the data says so."""
