"""The few random calls a split rule needs, from today's generator or from the one the released partitions used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Draws(Protocol):
    """What the released rules draw. `replays`: every call must be made in the released order, needed or not."""

    @property
    def replays(self) -> bool: ...

    def below(self, limit: int) -> int: ...

    def shuffle(self, rows: np.ndarray) -> None: ...

    def dirichlet(self, concentration: np.ndarray) -> np.ndarray: ...

    def skip(self, concentration: np.ndarray, times: int) -> None:
        """As many calls of `dirichlet` whose result nobody needs."""
        ...


@dataclass(frozen=True)
class ModernDraws:
    """Draws from a `numpy.random.Generator`."""

    generator: np.random.Generator
    replays: bool = False

    def below(self, limit: int) -> int:
        return int(self.generator.integers(limit))

    def shuffle(self, rows: np.ndarray) -> None:
        self.generator.shuffle(rows)

    def dirichlet(self, concentration: np.ndarray) -> np.ndarray:
        return self.generator.dirichlet(concentration)

    def skip(self, concentration: np.ndarray, times: int) -> None:
        if times:
            self.generator.dirichlet(concentration, times)


@dataclass(frozen=True)
class LegacyDraws:
    """Draws from NumPy's legacy generator, whose stream is frozen for good."""

    state: np.random.RandomState
    replays: bool = True

    def below(self, limit: int) -> int:
        return int(self.state.randint(limit))

    def shuffle(self, rows: np.ndarray) -> None:
        self.state.shuffle(rows)

    def dirichlet(self, concentration: np.ndarray) -> np.ndarray:
        return self.state.dirichlet(concentration)

    def skip(self, concentration: np.ndarray, times: int) -> None:
        if times:
            self.state.dirichlet(concentration, times)
