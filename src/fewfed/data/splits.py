"""Labels to clients: a rule written as text (`iid`, `qua:3`, `dir:0.1`, ...) says which rows each client holds."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data import skew
from fewfed.data.split_dirichlet import (
    DirichletOptions,
    balanced_dirichlet,
    multinomial_dirichlet,
    released_options,
)
from fewfed.data.split_draws import Draws, LegacyDraws, ModernDraws
from fewfed.data.split_exact import exact
from fewfed.data.split_file import from_file
from fewfed.data.split_pool import Assigned, Flat, Pool
from fewfed.data.split_rules import even, natural, quantity, size_skew
from fewfed.errors import ConfigError, DataError, did_you_mean

__all__ = ["RULES", "DirichletOptions", "Rule", "Split", "make_split", "parse_rule", "released_options"]

RULES: Mapping[str, tuple[str, ...]] = {
    "iid": (),
    "qua": ("Q",),
    "dir": ("MU",),
    "dir-released": ("MU",),
    "dirm": ("MU",),
    "exact": ("N", "Q"),
    "size": ("BETA",),
    "site": (),
    "domain": (),
    "subject": (),
    "client": (),
    "file": ("PATH",),
}
"""Every rule and the names of its parameters: N and Q are whole numbers, MU and BETA are positive numbers, and PATH is
everything behind the first colon."""

MOST_WHOLE = 1 << 31
SMALLEST, LARGEST = 1e-6, 1e6
"""What MU and BETA may be: farther out, proportions are no longer numbers."""
MOST_CLASSES = 1_000_000
EMPTY_CLIENTS = 10_000
"""So many clients there may be in any case, if they may be empty; else no more than rows."""
SHOWN = 60
"""Letters of a rule that an error repeats."""

NATURAL = ("site", "domain", "subject", "client")
FILE = "file"
RELEASED = "dir-released"
BY_CLASS = ("qua", "dir", "dir-released", "dirm", "exact")
WHOLE = ("N", "Q")

SHOWN_CLIENTS, SHOWN_CLASSES = 200, 50
"""How much of a split is written down row by row, for a picture: a run of a million clients keeps a small file."""
_CLIENTS_AT_ONCE = 1 << 15
"""Counted or hashed together, so that a million of them need little room for it."""


@dataclass(frozen=True)
class Rule:
    """A rule's name and the values of its parameters, in the order of `RULES`."""

    name: str
    values: tuple[float, ...]
    path: Path | None = None
    """The file of the rule `file`."""

    def whole(self, position: int) -> int:
        return int(self.values[position])


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of every client: client k holds `order[offsets[k]:offsets[k + 1]]`."""

    name: str
    order: np.ndarray
    offsets: np.ndarray
    seed: int = 0
    legacy_seed: int | None = None
    volume: float = 1.0
    attempts: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        for field in ("order", "offsets"):
            frozen = np.array(getattr(self, field), dtype=np.int64)
            frozen.flags.writeable = False
            object.__setattr__(self, field, frozen)

    @classmethod
    def of(cls, name: str, clients: Sequence[np.ndarray] | Flat) -> Split:
        """A split from one array of rows for each client, or from all of them in one."""
        if isinstance(clients, Flat):
            return cls(name, clients.order, np.concatenate([[0], np.cumsum(clients.sizes)]))
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in clients])])
        return cls(name, np.concatenate(clients) if len(clients) else np.empty(0), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, client: int) -> np.ndarray:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of a split with clients 0 to {len(self) - 1}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Rows of each class on each client, clients by classes."""
        labels = np.asarray(labels)
        counts = np.empty((len(self), classes), np.int32)
        for first in range(0, len(self), _CLIENTS_AT_ONCE):
            here = self.offsets[first : first + _CLIENTS_AT_ONCE + 1]
            clients = len(here) - 1
            owner = np.repeat(np.arange(clients), np.diff(here))
            cell = owner * classes + labels[self.order[here[0] : here[-1]]]
            part = np.bincount(cell, minlength=clients * classes)
            counts[first : first + clients] = part.reshape(clients, classes)
        return counts

    def head(self, labels: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Rows of each class on each of the first clients, ready for JSON: what a picture of the split shows."""
        first = Split(self.name, self.order, self.offsets[: SHOWN_CLIENTS + 1])
        counts = first.counts(labels, len(names))[:, :SHOWN_CLASSES]
        return {"classes": [str(name) for name in names[:SHOWN_CLASSES]], "clients": counts.tolist()}

    @property
    def digest(self) -> str:
        """SHA-256 of the offsets and the order: equal for equal splits and no others."""
        return _sha256(self.offsets, self.order)

    def manifest(self, labels: np.ndarray, classes: int) -> dict[str, Any]:
        """What a run folder keeps about the split, ready for JSON."""
        counts = self.counts(labels, classes)
        return {
            "rule": self.name,
            "seed": self.seed,
            "legacy_seed": self.legacy_seed,
            "volume": self.volume,
            "clients": len(self),
            "rows": len(self.order),
            "sizes": dataclasses.asdict(skew.size_summary(counts)),
            "mean_classes": skew.mean_classes(counts),
            "sparsity": skew.sparsity(counts),
            "scarcity": skew.scarcity(counts),
            "attempts": self.attempts,
            "note": self.note,
            "digest": self.digest,
            "counts_digest": _sha256(counts),
        }


def parse_rule(text: str) -> Rule:
    """Read `name:value:...`; a `ConfigError` says what is unknown, missing or out of range."""
    name, *values = text.split(":")
    if name not in RULES:
        raise ConfigError(did_you_mean("split rule", _shown(name), RULES))
    parameters = RULES[name]
    usage = ":".join((name, *parameters))
    if name == FILE:
        if not any(values):
            raise ConfigError(f"split '{_shown(text)}' names no file: expected a path, written '{usage}'")
        return Rule(name, (), Path(text.removeprefix(f"{FILE}:")))
    if len(values) != len(parameters):
        raise ConfigError(
            f"split '{_shown(text)}' has {len(values)} parameters: expected {len(parameters)}, written '{usage}'"
        )
    return Rule(name, tuple(_number(text, usage, *named) for named in zip(parameters, values, strict=True)))


def make_split(
    rule: str,
    labels: np.ndarray,
    classes: int,
    clients: int,
    seed: int,
    *,
    groups: Mapping[str, np.ndarray] | None = None,
    volume: float = 1.0,
    min_size: int | None = None,
    legacy_seed: int | None = None,
    options: DirichletOptions | None = None,
) -> Split:
    """Hand rows out to clients by `rule`; the same arguments give the same split.

    `volume` is the fraction of the rows handed out, chosen at random. `min_size` is the smallest client allowed (1
    unless the rule has its own; 0 lets clients be empty); of a natural group `volume` leaves that many rows.
    `legacy_seed` draws `qua` and `dir` exactly as the released FLea code does. `options` are the finer settings of
    `dir` and `dirm`; `min_size` wins over the one in there.
    `dir-released` is `dir` with `released_options`, which must be given.
    """
    parsed = parse_rule(rule)
    labels = _checked_labels(np.asarray(labels), classes)
    _check(parsed, clients, seed, volume, min_size, legacy_seed)
    if parsed.name == RELEASED and options is None:
        raise ConfigError(f"split '{rule}' depends on the data: expected options, as released_options() makes them")
    chosen = options or DirichletOptions()
    if min_size is not None:
        chosen = dataclasses.replace(chosen, min_size=min_size)
    needed = 1 if chosen.min_size is None else chosen.min_size
    generator = np.random.default_rng(seed)
    if parsed.path is not None:
        assigned = from_file(parsed.path, len(labels), clients, needed)
    elif parsed.name in NATURAL:
        assigned = natural(parsed.name, groups or {}, len(labels), clients, volume, needed, generator)
    else:
        pool = Pool(labels, _volume(len(labels), volume, generator), classes)
        if len(pool) < clients * needed:
            raise ConfigError(
                f"{len(pool)} rows are too few for {clients} clients with at least {needed} rows each: use at most "
                f"{len(pool) // needed} clients"
            )
        if clients > max(EMPTY_CLIENTS, len(pool)):
            raise ConfigError(
                f"clients = {clients} for {len(pool)} rows: expected at most {max(EMPTY_CLIENTS, len(pool))}",
                key="clients",
            )
        assigned = _assign(parsed, pool, clients, generator, legacy_seed, needed, chosen)
    split = dataclasses.replace(
        Split.of(rule, assigned.clients),
        seed=seed,
        legacy_seed=legacy_seed,
        volume=volume,
        attempts=assigned.attempts,
        note=assigned.note,
    )
    smallest = int(split.sizes.min())
    if smallest < needed:
        raise ConfigError(
            f"split '{rule}' leaves a client with {smallest} rows but at least {needed} were asked for: "
            f"use min_size = {smallest} or fewer clients"
        )
    return split


def _volume(rows: int, volume: float, generator: np.random.Generator) -> np.ndarray:
    if volume == 1:
        return np.arange(rows)
    return np.sort(generator.choice(rows, max(1, round(volume * rows)), replace=False))


def _assign(
    rule: Rule,
    pool: Pool,
    clients: int,
    generator: np.random.Generator,
    legacy_seed: int | None,
    min_size: int,
    options: DirichletOptions,
) -> Assigned:
    draws: Draws = ModernDraws(generator)
    if legacy_seed is not None:
        draws = LegacyDraws(np.random.RandomState(legacy_seed))
    match rule.name:
        case "iid":
            return even(pool, clients, generator)
        case "qua":
            return quantity(pool, clients, draws, rule.whole(0))
        case "dir" | "dir-released":
            # Files are often sorted by subject; slices by class must not inherit that unless they replay a release.
            mixed = pool if draws.replays or options.slice_by == "order" else pool.shuffled(generator)
            return balanced_dirichlet(mixed, clients, draws, rule.values[0], options)
        case "dirm":
            return multinomial_dirichlet(pool, clients, generator, rule.values[0], options)
        case "exact":
            return exact(pool, clients, generator, rule.whole(0), rule.whole(1))
        case "size":
            return size_skew(pool, clients, generator, rule.values[0], min_size)
    raise AssertionError(f"rule '{rule.name}' is listed but not implemented")


def _number(text: str, usage: str, parameter: str, value: str) -> float:
    whole = parameter in WHOLE
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = math.nan
    lowest, highest = (1, MOST_WHOLE) if whole else (SMALLEST, LARGEST)
    if not lowest <= number <= highest:
        expected = "a whole number of at least 1" if whole else "a number above 0"
        limit = f", at most {highest:g}" if number > highest else f", at least {lowest:g}" if number > 0 else ""
        raise ConfigError(
            f"split '{_shown(text)}': {parameter} is '{_shown(value)}', expected {expected}{limit} (written '{usage}')"
        )
    return number


def _checked_labels(labels: np.ndarray, classes: int) -> np.ndarray:
    if labels.ndim != 1 or len(labels) == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels to split have shape {labels.shape} and type {labels.dtype}: expected one whole number for each row"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"labels run from {labels.min()} to {labels.max()}: expected 0 to {classes - 1}")
    if classes > MOST_CLASSES:
        raise DataError(f"{classes} classes are too many for a split: expected at most {MOST_CLASSES}")
    return labels.astype(np.int64, copy=False)


def _check(
    rule: Rule,
    clients: int,
    seed: int,
    volume: float,
    min_size: int | None,
    legacy_seed: int | None,
) -> None:
    if clients < (0 if rule.name in (*NATURAL, FILE) else 1):
        raise ConfigError(
            f"clients = {clients}: expected at least 1, or 0 with a natural group or a file to take all", key="clients"
        )
    if seed < 0:
        raise ConfigError(f"seed = {seed}: expected 0 or more", key="seed")
    if not 0 < volume <= 1:
        raise ConfigError(f"volume = {volume}: expected above 0 and at most 1", key="volume")
    if rule.name == FILE and volume != 1:
        raise ConfigError(f"volume = {volume}: a split from a file says itself which rows are given out", key="volume")
    if min_size is not None and min_size < 0:
        raise ConfigError(f"min_size = {min_size}: expected 0 or more", key="min_size")
    if legacy_seed is not None and rule.name not in ("qua", "dir"):
        raise ConfigError(f"legacy_seed replays the released rules 'qua' and 'dir', not '{rule.name}': leave it out")
    if legacy_seed is not None and not 0 <= legacy_seed < 1 << 32:
        raise ConfigError(f"legacy_seed = {legacy_seed}: expected 0 or more, and less than 2^32", key="legacy_seed")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _sha256(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        for first in range(0, len(array), _CLIENTS_AT_ONCE):
            digest.update(np.ascontiguousarray(array[first : first + _CLIENTS_AT_ONCE], dtype="<i8").data)
    return digest.hexdigest()
