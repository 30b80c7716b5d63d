"""What a method is: a few pure functions over trees, whose defaults are FedAvg.

A method never trains, never moves data and never touches a file. It says what is broadcast, what the local loss is,
what is uploaded and how uploads change the server. The engine does everything else, the same for all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism
from fewfed.network import Network
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan, Random
from fewfed.task import Task
from fewfed.training import Training, Weighting
from fewfed.tree import Tree


class Batch(NamedTuple):
    """One step's rows and what the method drew for them."""

    x: Tensor
    y: Tensor
    drawn: Tree

    @property
    def draw(self) -> NoReturn:
        raise ConfigError("batch.draw is called batch.drawn since fewfed 0.2: CHANGELOG.md says what changed in 0.2")


@dataclass(frozen=True)
class Context:
    """Everything a method may look at while it works for one client in one phase."""

    net: Network
    task: Task
    plan: Plan
    phase: Phase
    clock: Clock
    client: int
    lr: float
    shape: tuple[int, ...]
    """Shape of one input, the same for all clients."""
    data: Examples
    """The client's own rows (for `end` and `data`; a step sees its batch)."""
    counts: Tensor
    """The client's own class counts."""
    shared: Tree
    """What the server broadcast to everybody."""
    personal: Tree
    """What the server sent to this client alone."""
    state: Tree
    """What the client remembers from its last participation."""
    steps: int = 0
    """Optimiser steps this phase takes."""
    weighting: Weighting = "samples"
    """What clients weigh in means, as the training says."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the run's weights and features."""
        return self.plan.dtype

    @property
    def size(self) -> int:
        """How many rows the client has. Constant over a step, but a Python number: not for use in `loss`."""
        return len(self.data)

    @property
    def weight(self) -> float:
        """What the client weighs in means: its rows, or the same as everybody. For `end`, not for use in `loss`."""
        return 1.0 if self.weighting == "uniform" else float(self.size)


class Report(NamedTuple):
    """What a client hands over at the end of a phase."""

    upload: Tree
    """One entry for every name the phase declares."""
    state: Tree
    """What the client remembers; empty unless the phase declares `keeps_state`."""
    weight: float
    """Its weight in MEAN combinations: `ctx.weight`, unless the method by definition weighs otherwise."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """Named numbers about its work that are no part of the method: noise spent, the site's own accuracy."""


class Combined(NamedTuple):
    """The uploads of a phase after combination."""

    values: Tree
    """By upload name. MEAN, SUM: a tree like one client's. CONCAT: rows of all. KEEP: a tree for each str(client)."""
    clients: tuple[int, ...]
    """Who took part, ascending: failed clients are missing."""
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Setup:
    """What is known before the first round."""

    net: Network
    task: Task
    plan: Plan
    clients: int
    shape: tuple[int, ...]
    training: Training = field(default_factory=Training)
    rows_public: bool = False
    """Whether everybody may see the clients' rows, so that a method may share what is as good as they are."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the run's weights and features: what a method makes by itself must be of it too."""
        return self.plan.dtype


@dataclass(frozen=True)
class Preset:
    """Named values for a method and, where they belong to it, for the local training around it."""

    method: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


Differentiate = Callable[[Tree], tuple[Tree, Tree]]
"""Takes a work tree, returns the gradient of the loss in its "params" and the loss terms."""


@runtime_checkable
class RowByRow(Protocol):
    """A `Differentiate` as the engine gives it to the outermost method, which can also look at rows one by one."""

    def by_row(self, work: Tree, /) -> Tree:
        """For every row of the batch the gradient of the loss of that row alone, rows first."""


class Exchange:
    """What is done in one phase, by the server and by each client. Every function has FedAvg as its default."""

    def broadcast(self, server: Tree) -> Tree:
        """What every member of the cohort receives."""
        return {"model": server["model"]}

    def personal(self, server: Tree, client: int) -> Tree:
        """What one member receives beside it."""
        return {}

    def data(self, ctx: Context) -> Examples:
        """The rows trained on."""
        return ctx.data

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        """All randomness of one step of `size` rows, drawn outside the step."""
        return {}

    def begin(self, ctx: Context) -> Tree:
        """The work tree a client starts from: "params" are trained, everything else is carried along."""
        return tree.clone(ctx.shared["model"])

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        """Named terms; what is minimised is their sum (without the `observed` ones)."""
        return {"task": ctx.task.loss(ctx.net.apply(work, batch.x), batch.y)}

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        """The step's direction and loss terms: by default the gradient of the loss."""
        return differentiate(work)

    def end(self, work: Tree, ctx: Context) -> Report:
        """What is uploaded and remembered after the local work."""
        return Report({"model": {"params": work["params"], "buffers": work["buffers"]}}, {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        """Which rows of the client are behind each row that `end` uploads, as (uploaded rows, rows behind each), with
        -1 where fewer are. For every phase that declares uploads with `rows`: what is said, attacked and bounded of
        shared rows starts from it."""
        return torch.zeros(0, 1, dtype=torch.long)

    @property
    def copies(self) -> int:
        """How many rows `end` uploads, one behind the other, for each row of the client that it sends; 0 where it sends
        none, or only what was made of several. Where there are any, `sends` says what they are."""
        return 0

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        """What would be uploaded of these rows of the client, in their order, by uploads that count rows: `end` uploads
        that of the rows the method chooses, and a defence may ask for others."""
        return {}

    def shares_at(self, known: Setup | Context) -> int:
        """How many stages rows pass whose features `end` uploads; 0 where it uploads none."""
        return 0

    def decoded(self, arrays: Tree) -> Tree:
        """What `end` uploads as numbers to compute with: by default it is. For the server, and for whoever attacks."""
        return arrays

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        """The server after the phase: by default each combined upload replaces the entry of its name."""
        return {**server, **combined.values}


@dataclass(frozen=True)
class Method(Exchange):
    """A federated method. Fields of subclasses are hyper-parameters; every function has FedAvg as its default.

    The functions of `Exchange` are those of the method's own phase. Another phase has a group of functions of its own:
    a `Part` of the method.
    """

    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Preset]] = MappingProxyType({})
    """Named settings beside `paper`, which every method has: its defaults."""
    variant: ClassVar[str] = ""
    """Set where this class is itself a preset of the method whose name it shares: a released code with its own loss."""
    own_training: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Training values that belong to the method (SCAFFOLD's formula is for plain SGD); the user's win over them."""
    observed: ClassVar[frozenset[str]] = frozenset()
    """Loss terms that are logged but not optimised."""
    personal_model: ClassVar[bool] = False
    """Whether each client ends with a model of its own; evaluation then averages over clients."""
    steps_differ: ClassVar[str] = ""
    """Why a client takes another number of steps than under FedAvg; empty where it does not."""
    needs_classes: ClassVar[bool] = False
    """Whether labels must be classes."""
    needs_stages: ClassVar[bool] = False
    """Whether it always looks between the stages of the network, or at one of them, so that there must be several."""
    no_batchnorm: ClassVar[str] = ""
    """Why the network must not have BatchNorm; empty where it may."""
    needs_rows_apart: ClassVar[bool] = False
    """Whether it looks at the rows of a batch one by one, so that network and loss must not mix them."""
    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters with which the method is exactly FedAvg; None where there are none."""
    mixes: ClassVar[tuple[str, str] | None] = None
    """Names under which a step draws which shared row is mixed in, and the weight of the local one; None where no
    shared rows are mixed into batches."""
    corrects_drift: ClassVar[bool] = False
    """Whether it reaches the common optimum of unequal quadratics with several local steps, where FedAvg does not."""
    another_aim: ClassVar[str] = ""
    """Why it does not minimise the mean loss on the clients' rows as they are; empty where it does."""

    @property
    def label(self) -> str:
        """The method as a user writes it."""
        return self.name

    @property
    def layers(self) -> tuple[Method, ...]:
        """The method and, of a wrapper, everything it is around, outermost first."""
        return (self,)

    def check(self, setup: Setup) -> None:
        """Raise `ConfigError` where the method does not fit the network, the task or the training."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        """The exchanges of a round."""
        return (Phase("train", self, clock.epochs),)

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        """The noise in a round's phases that bounds what they tell about a row: by default there is none."""
        return ()

    def server_init(self, setup: Setup) -> Tree:
        """What the server knows before the first round."""
        return {"model": setup.net.model()}

    def client_init(self, setup: Setup) -> Tree:
        """What a client remembers before its first participation."""
        return {}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        """The model that predicts: the server's, or for `personal_model` methods the client's with this state."""
        model: Tree = server["model"]
        return model

    @property
    def besides(self) -> Mapping[str, Method]:
        """Methods that train exactly as this one does, with the same tree at the server, and predict otherwise: by a
        name, to be scored beside it in the same run."""
        return {}

    def presented(self, model: Tree, x: Tensor) -> Tensor:
        """Test inputs as the model that predicts is to see them: as they are, where the method does not change them."""
        return x


M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Part(Exchange, Generic[M]):
    """The functions of one phase of a method that are not the method's own: what is left out is FedAvg."""

    method: M
