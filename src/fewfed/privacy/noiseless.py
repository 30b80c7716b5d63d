"""What would be sent if the noise that protects it were its own mean: what an attacker who fits inputs to what was sent
has to go by. It does not know the noise that was added, and that of its own clients would only come on top."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.engine.job import Job
from fewfed.plan import Plan, Random


def without_noise(job: Job) -> Job:
    """The same job, whose clients add no noise to what they send."""
    same = {field.name: getattr(job.plan, field.name) for field in dataclasses.fields(job.plan)}
    return dataclasses.replace(job, plan=_Noiseless(**same))


@dataclass(frozen=True)
class _Noiseless(Plan):
    def protecting(self, round: int, phase: str, client: int, purpose: str) -> Random:  # noqa: ARG002
        return _Mean(dtype=self.dtype)

    def staying(self, phase: str, client: int, purpose: str, rows: Iterable[int]) -> Random:  # noqa: ARG002
        return _Mean(dtype=self.dtype)


class _Mean(Random):
    """Not drawn, but what is drawn on the average."""

    def normal(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.5, dtype=self._dtype)
