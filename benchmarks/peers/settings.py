"""The work everybody does: clients, rows, network and local training. No torch here: the runner only counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Setting:
    """One federation and how its clients train; all clients hold the same number of rows."""

    name: str
    network: str
    shape: tuple[int, ...]
    classes: int
    rows: int
    clients: int
    cohort: int
    batch: int
    epochs: int
    lr: float
    optimizer: Literal["sgd", "adam"]
    rounds: int
    """Rounds that are measured unless told otherwise: some ten seconds of the bare loop, for which fewfed tries in the
    first round what is faster."""

    @property
    def steps_per_client(self) -> int:
        """Optimiser steps of one client's turn; the last batch of an epoch counts, whether filled up or short."""
        return self.epochs * -(-self.rows // self.batch)

    @property
    def rows_per_epoch(self) -> int:
        """Rows a client trains on in an epoch, its last batch filled up."""
        return -(-self.rows // self.batch) * self.batch

    def expected_steps(self, rounds: int) -> int:
        return rounds * self.cohort * self.steps_per_client

    def describe(self) -> str:
        return (
            f"{self.cohort} of {self.clients} clients x {self.rows} rows of {'x'.join(map(str, self.shape))}, "
            f"batch {self.batch}, {self.epochs} epoch{'s' if self.epochs > 1 else ''}, {self.optimizer} {self.lr:g}"
        )


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        # The CIFAR-10 benchmark that pfl-research published against other simulators.
        Setting("cifar_pfl", "pfl-cnn", (3, 32, 32), 10, 50, 1000, 50, 10, 1, 0.1, "sgd", 5),
        # The two of benchmarks/overhead.py.
        Setting("lenet5", "lenet5", (1, 28, 28), 10, 50, 1000, 100, 32, 5, 0.01, "sgd", 5),
        Setting("harnet", "harnet", (1, 128, 3), 6, 100, 75, 8, 32, 5, 0.01, "adam", 3),
    )
}
