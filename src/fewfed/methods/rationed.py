"""Fewer and smaller rows on their way to clients."""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.method import Combined, Context, Method, Setup
from fewfed.methods.flea import FLea
from fewfed.methods.parts.balance import in_turn, one_of_each
from fewfed.methods.parts.codes import decode, encode
from fewfed.methods.parts.protection import sending
from fewfed.phase import Cohort, Phase
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

RATION = "ration"


@dataclass(frozen=True)
class Rationed(Wrapper):
    """A client receives only some of the rows that clients sent, of every class as many, and with few bits a number.

    Around any method whose server hands rows on: each member of a phase is sent, in place of all rows that the server
    keeps, `part` times as many as came the last time any came. They are drawn anew each time and without repeats;
    classes take turns, and one that has no more rows is passed over. Each row has its own 2^bits equal steps, as in
    `quantised`, which does the same on the way up. What a client can draw from is smaller by as much as what it
    receives. A pool that is collected once and then held by clients is sent again in every round: around FedData or
    FedMix this costs bytes. Where the server keeps rows to itself (CCVR), nothing changes.
    """

    name = "rationed"
    family = "feature sharing"
    paper = "this project's own; steps as in Jacob et al., Quantization and Training of Neural Networks for Efficient \
Integer-Arithmetic-Only Inference, CVPR 2018"
    neutral = MappingProxyType({"part": math.inf, "bits": 0})
    keeps_bounds = True

    inner: Method = field(default_factory=FLea)
    part: float = setting(1.0, "rows a client receives, as a part of those that came last; inf = all there are", gt=0)
    bits: Literal[0, 2, 4, 8] = setting(8, "bits a number; 0 = numbers as they are")

    @cached_property
    def sent(self) -> tuple[Phase, ...]:
        """The phases in which clients send rows."""
        return sending(self.inner)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if not self.sent:
            raise ConfigError(
                f"method '{self.name}' hands on fewer of the rows that clients send, and clients of "
                f"'{self.inner.label}' send none: expected a method that shares rows"
            )
        if any(isinstance(layer, Rationed) for layer in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' hands on fewer rows already: wrap it in '{self.name}' once")

    def around(self, phase: Phase) -> Phase:
        if phase.cohort is Cohort.SERVER or (math.isinf(self.part) and not self.bits):
            return super().around(phase)
        rows = frozenset(name for each in self.sent for name in each.row_uploads)
        labels = frozenset(each.label_upload for each in self.sent)
        return dataclasses.replace(phase, does=Ration(self, phase, rows, labels))

    def own_init(self, setup: Setup) -> Tree:
        return {"seed": torch.tensor(setup.plan.seed), "times": torch.tensor(0), "came": torch.zeros(0).long()}


@dataclass(frozen=True)
class Ration(Around[Rationed]):
    """A phase whose members receive some rows each, in place of all in the broadcast."""

    rows: frozenset[str]
    labels: frozenset[str]
    """Names of the rows that clients send in any phase, and of their labels: what is broadcast under them is those."""

    def inside(self, ctx: Context) -> Context:
        given, bits = ctx.personal.get(RATION, {}), self.wrapper.bits
        rows = {name: value if isinstance(value, Tensor) else decode(value, bits) for name, value in given.items()}
        return dataclasses.replace(super().inside(ctx), shared={**ctx.shared, **rows})

    def broadcast(self, server: Tree) -> Tree:
        return {name: value for name, value in super().broadcast(server).items() if name not in self.rows | self.labels}

    def personal(self, server: Tree, client: int) -> Tree:
        kept = {name: value for name, value in super().broadcast(server).items() if name in self.rows | self.labels}
        theirs, own, bits = super().personal(server, client), server["own"], self.wrapper.bits
        if not kept:
            return theirs
        first = next(iter(kept.values()))
        labels = next((kept[name] for name in self.labels if name in kept), first.new_zeros(len(first)))
        count = math.ceil(min(self.wrapper.part * len(own["came"]), len(labels)))
        random = Random(int(own["seed"]), self.wrapper.name, int(own["times"]), client)
        chosen = in_turn(labels, count, random).to(first.device)
        some = {name: value[chosen] for name, value in kept.items()}
        few = {name: encode(value, bits) if bits and name in self.rows else value for name, value in some.items()}
        return {**theirs, RATION: few}

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        own, name = server["own"], self.phase.label_upload or self.phase.row_upload
        # Kept instead of how many they are, so that rows of a site that withdraws can be taken out, and count no more.
        came = one_of_each(self.decoded({name: combined.values[name]})[name]) if name else own["came"][:0]
        counted = {"times": own["times"] + 1, "came": came if len(came) else own["came"]}
        return {**super().absorb(server, combined), "own": {**own, **counted}}
