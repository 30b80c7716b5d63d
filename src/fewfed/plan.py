"""The plan: every batch, cohort and random draw of a run, as a pure function of (seed, round, phase, client).

No executor draws anything itself, so all executors train on the same rows with the same noise.
"""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

BatchRule = Literal["fill", "partial", "released"]
Sampling = Literal["uniform", "released"]
Protection = Literal["seed", "system"]

_SECRET_BYTES = 32


class Random:
    """A source of random numbers as tensors. Endless runs (`cycle`, `loader`, `count`) remember where they are.

    Gaussian noise has a stream of its own, so that a lot of it can be made in advance, in one go and elsewhere
    (`make_normals`), and still be the numbers that drawing a few at a time gives.
    """

    def __init__(self, *key: int | str, dtype: torch.dtype = torch.float32) -> None:
        self._key = key
        self._dtype = dtype
        self._waiting: dict[str, np.ndarray] = {}
        self._counted = 0
        self._ready = np.empty(0, np.float32)

    @cached_property
    def numpy(self) -> np.random.Generator:
        """Made when first used: most methods draw nothing."""
        return _generator(*self._key)

    @cached_property
    def _noise(self) -> np.random.Generator:
        return _generator(*self._key, "normal")

    def cycle(self, count: int, size: int, name: str = "cycle") -> Tensor:
        """The next `size` of 0..count-1 from an endless run of reshuffled passes: every draw is full."""
        waiting = self._waiting.get(name, np.empty(0, np.int64))
        while len(waiting) < size:
            waiting = np.concatenate([waiting, self.numpy.permutation(count)])
        self._waiting[name] = waiting[size:]
        return torch.from_numpy(waiting[:size])

    def loader(self, count: int, size: int, name: str = "loader") -> Tensor:
        """The next batch of an endless loader that keeps the short batch at the end of each reshuffled pass."""
        waiting = self._waiting.get(name, np.empty(0, np.int64))
        if not len(waiting):
            waiting = self.numpy.permutation(count)
        self._waiting[name] = waiting[size:]
        return torch.from_numpy(waiting[:size])

    def count(self) -> int:
        """How often this was asked before: asked once in every `draw`, the number of the step, from 0."""
        _ = self.numpy  # What is not the same in every step is drawn step by step, as all that comes from there.
        self._counted += 1
        return self._counted - 1

    def permutation(self, count: int) -> Tensor:
        return torch.from_numpy(self.numpy.permutation(count))

    def choice(self, count: int, size: int, replace: bool) -> Tensor:
        return torch.from_numpy(self.numpy.choice(count, size, replace=replace))

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.from_numpy(self.numpy.integers(high, size=shape))

    def beta(self, a: float, *shape: int) -> Tensor:
        """Beta(a, a); its limit for infinite a is the constant 1/2."""
        if math.isinf(a):
            return torch.full(shape, 0.5, dtype=self._dtype)
        return self._real(self.numpy.beta(a, a, shape).astype(np.float32))

    def uniform(self, *shape: int) -> Tensor:
        return self._real(self.numpy.random(shape, np.float32))

    def normal(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        if not len(self._ready):
            return self._real(self._noise.standard_normal(shape, np.float32))
        if len(self._ready) < count:
            self.make_normals(count - len(self._ready))
        taken, self._ready = self._ready[:count], self._ready[count:]
        return self._real(taken.reshape(shape))

    def make_normals(self, count: int) -> None:
        """Have the next `count` normal numbers ready."""
        made = self._noise.standard_normal(count, np.float32)
        self._ready = np.concatenate([self._ready, made]) if len(self._ready) else made

    def _real(self, values: np.ndarray) -> Tensor:
        """In the type of the run; drawn in single precision, so that runs of every type see the same numbers."""
        return torch.from_numpy(values).to(self._dtype)


class SystemRandom(Random):
    """Noise from the operating system, which nobody can compute again: for what protects a real site."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype=dtype)

    @property
    def numpy(self) -> NoReturn:
        raise NotImplementedError("the operating system gives normal and uniform numbers: expected no others")

    def uniform(self, *shape: int) -> Tensor:
        return self._real(self._open_unit(shape))

    def normal(self, *shape: int) -> Tensor:
        """By the inverse of the distribution function, in double precision."""
        drawn: Tensor = torch.special.ndtri(torch.from_numpy(self._open_unit(shape)))
        return drawn.to(self._dtype)

    def _open_unit(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform on (0, 1) without its ends, where the inverse is infinite: the middles of 2**53 equal parts."""
        words = np.frombuffer(self._bytes(8 * math.prod(shape)), np.uint64).reshape(shape)
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53

    def _bytes(self, count: int) -> bytes:
        return os.urandom(count)


class SecretRandom(SystemRandom):
    """Noise that only who knows a secret can compute again: for what protects a real site and has to stay the same."""

    def __init__(self, secret: bytes, *key: int | str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        # The secret's length is fixed by its digest, so that no secret and key together look like others.
        self._source = hashlib.sha256(secret).digest() + repr(key).encode()
        self._asked = 0

    def _bytes(self, count: int) -> bytes:
        self._asked += 1
        return hashlib.shake_256(self._source + self._asked.to_bytes(8, "big")).digest(count)


def _generator(*key: int | str) -> np.random.Generator:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part & 0xFFFFFFFFFFFFFFFF for part in key]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@dataclass(frozen=True)
class Plan:
    """Batches, cohorts and draws of one run."""

    seed: int
    batch: int
    rule: BatchRule = "fill"
    sampling: Sampling = "uniform"
    dtype: torch.dtype = torch.float32
    """Type of the real numbers that methods draw."""
    protection: Protection = "seed"
    """Where noise that protects comes from: in a simulation the seed, at a real site the operating system."""
    secret: bytes = field(default=b"", repr=False, compare=False)
    """At a real site, what `staying` noise is made with. A site that keeps it has the same noise after a restart; where
    none is given, the operating system gives one."""

    def __post_init__(self) -> None:
        if self.protection == "system" and not self.secret:
            object.__setattr__(self, "secret", os.urandom(_SECRET_BYTES))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            moved = " (plan.draws is called plan.random since fewfed 0.2)" if name == "draws" else ""
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'{moved}")

    def cohort(self, round: int, clients: int, size: int) -> list[int]:
        """The clients of a round, drawn without replacement; the same for every method of a seed."""
        if self.sampling == "released":
            return [int(k) for k in np.random.RandomState(round).choice(clients, size, replace=False)]
        random = Random(self.seed, "cohort", round)
        return [int(k) for k in random.numpy.choice(clients, size, replace=False)]

    def random(self, round: int, phase: str, client: int) -> Random:
        """The method's own random numbers for one client in one phase."""
        return Random(self.seed, "method", round, phase, client, dtype=self.dtype)

    def fixed(self, client: int, purpose: str) -> Random:
        """Random numbers that are the same in every round: for a client's shared subset, say."""
        return Random(self.seed, "fixed", purpose, client, dtype=self.dtype)

    def protecting(self, round: int, phase: str, client: int, purpose: str) -> Random:
        """Noise that protects what a client sends, new in every round. Only `normal` and `uniform` may be asked for."""
        if self.protection == "system":
            return SystemRandom(self.dtype)
        return Random(self.seed, "protection", purpose, round, phase, client, dtype=self.dtype)

    def staying(self, phase: str, client: int, purpose: str, rows: Iterable[int]) -> Random:
        """Noise that protects what a client sends of these of its rows, in any order: the same in every round, and
        other noise for other rows. Only `normal` and `uniform` may be asked for."""
        key: tuple[int | str, ...] = (purpose, phase, client, *sorted(rows))
        if self.protection == "system":
            return SecretRandom(self.secret, *key, dtype=self.dtype)
        return Random(self.seed, "staying protection", *key, dtype=self.dtype)

    def step_noise(self, random: Random) -> Random:
        """Where noise that protects single steps comes from, inside `draw`: its own source of random numbers in a
        simulation, and the operating system at a real site. Only `normal` and `uniform` may be asked for."""
        if self.protection == "seed":
            return random
        _ = random.numpy  # Says that steps differ, so that nobody draws for all of them at once.
        return SystemRandom(self.dtype)

    def attack(self, round: int, phase: str, client: int) -> Random:
        """What an attacker of a simulation draws in one phase."""
        return Random(self.seed, "attack", round, phase, client, dtype=self.dtype)

    def attackers(self, clients: int, count: int) -> frozenset[int]:
        """Which of the clients attack, where somebody asks for so many: the same in all rounds, for every method."""
        return frozenset(int(k) for k in Random(self.seed, "attackers").numpy.choice(clients, count, replace=False))

    def row_random(self, round: int, phase: str, client: int, *, seen: bool = False) -> Random:
        """What is new about a client's rows in one phase: flips and noise of one use after another, in its steps. Or,
        for all else that looks at its rows in that phase, once for the phase (`seen`)."""
        return Random(self.seed, "seen rows" if seen else "rows", round, phase, client, dtype=self.dtype)

    def network_seed(self, round: int, phase: str, client: int) -> int:
        """What torch's own generator is seeded with where a network draws for itself (dropout)."""
        return int(Random(self.seed, "network", round, phase, client).integers(2**62, 1))

    def steps(self, count: int, epochs: int) -> int:
        """Optimiser steps of `epochs` passes over `count` rows."""
        if count == 0 or epochs == 0:
            return 0
        per_epoch = count // self.batch + 1 if self.rule == "released" else -(-count // self.batch)
        return epochs * per_epoch

    def has_even_batches(self, count: int) -> bool:
        """Whether all batches of `count` rows have the same size."""
        return self.rule == "fill" or count <= self.batch or count % self.batch == 0

    def batches(self, round: int, phase: str, client: int, count: int, epochs: int) -> list[Tensor]:
        """Row numbers of every step.

        `fill`: every batch has min(batch, count) rows, an epoch is ceil(count/batch) steps, a short last batch is
        topped up from the next reshuffled pass. `partial`: a short last batch is kept. `released`: FLea's released
        loader, floor(count/batch) + 1 draws an epoch from one endless loader that keeps short batches.
        """
        if self.rule == "fill":
            return list(self.filled_batches(round, phase, client, count, epochs)) if count else []
        random = Random(self.seed, "batches", round, phase, client)
        return [random.loader(count, self.batch) for _ in range(self.steps(count, epochs))]

    def filled_batches(self, round: int, phase: str, client: int, count: int, epochs: int) -> Tensor:
        """The batches of rule `fill` as (steps, rows)."""
        steps, size = self.steps(count, epochs), min(self.batch, count)
        random = Random(self.seed, "batches", round, phase, client)
        return random.cycle(count, steps * size).reshape(steps, size)
