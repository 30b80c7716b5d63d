"""The vocabulary of one exchange: who takes part, how long they train, what leaves them and how it is combined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fewfed.errors import ConfigError

if TYPE_CHECKING:
    from fewfed.method import Exchange


class Combine(Enum):
    """How the server combines one named upload over the clients that sent it."""

    MEAN = "mean"
    """Weighted mean. The server needs no single client's value, so it may go through secure aggregation."""
    SUM = "sum"
    """Plain sum; secure aggregation likewise."""
    CONCAT = "concat"
    """Rows of all clients one after another, without names: the server sees every row as it is."""
    KEEP = "keep"
    """One entry a client, under its number: the server sees each client's value as it is."""

    @property
    def seen_raw(self) -> bool:
        """Whether the server reads single clients' values, so that an attack may start from them."""
        return self in (Combine.CONCAT, Combine.KEEP)


class Role(StrEnum):
    """What an upload is, for everybody who must know without knowing the method: statements, attacks, defences."""

    MODEL = "model"
    """Weights, and running statistics, of the network that predicts, or of a part of it."""
    UPDATE = "update"
    """A change of such weights, or a gradient."""
    CONTROL = "control"
    """What corrects local steps: control variates and their changes."""
    FEATURES = "features"
    """Features of single rows."""
    INPUTS = "inputs"
    """Inputs, as they are, averaged, or what is left of them."""
    LABELS = "labels"
    """Labels of rows: class numbers, shares of classes, masks."""
    STATISTICS = "statistics"
    """Numbers computed from many rows: moments, amplitudes, sensitivities."""
    PROTOTYPES = "prototypes"
    """One vector for each class."""
    COUNTS = "counts"
    """How many rows, of which classes, or which classes at all."""
    GENERATOR = "generator"
    """Weights of an auxiliary network: a generator, an autoencoder."""
    SCORE = "score"
    """How well the client's own rows are predicted."""


def _refuse_other(value: Any, kind: type[Enum], what: str) -> None:
    """Raise unless a value is one of an enumeration's."""
    if not isinstance(value, kind):
        known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(f"{what} is {value!r:.60}: expected one of {known}")


def _refuse_no_number(value: Any, what: str) -> None:
    """Raise unless a value is a finite number from 0 on."""
    is_number = isinstance(value, (int, float, Real)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ConfigError(f"{what} = {value!r}: expected a finite number from 0 on")


@dataclass(frozen=True)
class Upload:
    """What a phase declares of one name that leaves a client. This *is* the privacy statement."""

    combine: Combine
    role: Role
    rows: float = 0.0
    """How many rows it may have for each row of the client's data: 0.1 is a tenth of them, 0 says that its first
    dimension counts no rows of data."""

    def __post_init__(self) -> None:
        _refuse_other(self.combine, Combine, "the combination of an upload")
        _refuse_other(self.role, Role, "the role of an upload")
        _refuse_no_number(self.rows, "rows of an upload")


@dataclass(frozen=True)
class Weight:
    """The largest weight a client may have in means: so much for each of its rows, and so much beside."""

    per_row: float = 1.0
    beside: float = 0.0

    def __post_init__(self) -> None:
        _refuse_no_number(self.per_row, "weight per_row")
        _refuse_no_number(self.beside, "weight beside")

    def most(self, rows: int) -> float:
        return self.per_row * rows + self.beside


BY_ROWS = Weight()
"""A client weighs at most as much as it has rows: FedAvg."""
EQUAL = Weight(0.0, 1.0)
"""All clients weigh the same."""


class Cohort(Enum):
    """Who takes part in a phase."""

    ROUND = "round"
    """The clients drawn for this round; every such phase of a round has the same ones."""
    ALL = "all"
    """Every client."""
    SERVER = "server"
    """The server itself, as a pseudo-client whose data the method names."""
    UNION = "union"
    """One pseudo-client that holds every client's data: no federation at all, the upper reference."""


MODEL: Mapping[str, Upload] = MappingProxyType({"model": Upload(Combine.MEAN, Role.MODEL)})
"""What FedAvg uploads."""

NOTHING: Mapping[str, Upload] = MappingProxyType({})


def shared_rows(per_row: float, **roles: Role) -> Mapping[str, Upload]:
    """Uploads that are rows of data: so many for each row a client has, seen one by one."""
    return {name: Upload(Combine.CONCAT, role, per_row) for name, role in roles.items()}


@dataclass(frozen=True)
class Phase:
    """One exchange of a round. It declares; what is done in it are the functions of `does`."""

    name: str
    does: Exchange
    """The functions of this phase: the method itself, or a group of functions of its own."""
    epochs: int = 0
    """Passes over the rows; without any, clients only compute what they upload."""
    uploads: Mapping[str, Upload] = field(default_factory=lambda: MODEL)
    cohort: Cohort = Cohort.ROUND
    keeps_state: bool = False
    """Whether a client remembers something between its participations because of this phase."""
    weight: Weight = BY_ROWS
    relayed: frozenset[str] = frozenset()
    """Uploads that the server only hands on to one other client each, and that could go there directly."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training fields that are this phase's own: another optimiser for a generator, say."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a phase is named {self.name!r}: expected a text that is not empty")
        if not callable(getattr(self.does, "broadcast", None)):
            raise ConfigError(
                f"phase '{self.name}' was given {self.does!r} as its functions: expected the method or a group of "
                f"functions, as in Phase('{self.name}', self, clock.epochs). Methods written for fewfed 0.1 leave it "
                "out: CHANGELOG.md says what changed in 0.2"
            )
        if not isinstance(self.epochs, (int, Integral)) or isinstance(self.epochs, bool) or self.epochs < 0:
            raise ConfigError(f"phase '{self.name}' has epochs = {self.epochs!r}: expected a whole number from 0 on")
        self._check_uploads()
        _refuse_other(self.cohort, Cohort, f"the cohort of phase '{self.name}'")
        if not isinstance(self.weight, Weight):
            raise ConfigError(f"phase '{self.name}' has weight = {self.weight!r}: expected a Weight, as in Weight(1.0)")
        if not isinstance(self.training, Mapping):
            raise ConfigError(f"phase '{self.name}' has training = {self.training!r}: expected named values")

    @property
    def row_uploads(self) -> tuple[str, ...]:
        """Its uploads that are features or inputs, one entry for each of several rows."""
        rows = (Role.FEATURES, Role.INPUTS)
        return tuple(name for name, each in self.uploads.items() if each.rows and each.role in rows)

    @property
    def row_upload(self) -> str:
        """The first of these; empty where there is none."""
        return next(iter(self.row_uploads), "")

    @property
    def label_upload(self) -> str:
        """The upload with their labels; empty where there is none."""
        return next((name for name, each in self.uploads.items() if each.rows and each.role is Role.LABELS), "")

    @property
    def trains_on_clients_rows(self) -> bool:
        """Whether steps are taken in it on rows that clients hold, and not by the server on what it was sent."""
        return self.epochs > 0 and self.cohort is not Cohort.SERVER

    @property
    def trains_predictor(self) -> bool:
        """Whether what is trained in it on clients' rows is the model that predicts, and not a generator beside it."""
        return self.trains_on_clients_rows and all(each.role is not Role.GENERATOR for each in self.uploads.values())

    def _check_uploads(self) -> None:
        if not isinstance(self.uploads, Mapping):
            raise ConfigError(
                f"phase '{self.name}' has uploads = {self.uploads!r}: expected what is declared of each name, as in "
                "{'model': Upload(Combine.MEAN, Role.MODEL)}"
            )
        for name, upload in self.uploads.items():
            if not isinstance(upload, Upload):
                raise ConfigError(
                    f"phase '{self.name}' declares upload '{name}' as {upload!r}: expected its combination and its "
                    "role, as in Upload(Combine.MEAN, Role.MODEL). Methods written for fewfed 0.1 name the combination "
                    "alone: CHANGELOG.md says what changed in 0.2"
                )
        if not isinstance(self.relayed, Set) or self.relayed - self.uploads.keys():
            raise ConfigError(
                f"phase '{self.name}' has relayed = {self.relayed!r}: expected a set of names of its uploads, of which "
                f"there are {', '.join(self.uploads) or 'none'}"
            )


@dataclass(frozen=True)
class Clock:
    """Where a run is: round counts from 0; `epochs` is what the experiment asks of a full local training."""

    round: int
    rounds: int
    epochs: int

    @property
    def first(self) -> bool:
        return self.round == 0

    @property
    def last(self) -> bool:
        return self.round == self.rounds - 1
