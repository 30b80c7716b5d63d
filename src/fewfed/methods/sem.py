"""SEM."""

import dataclasses
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import torch

from fewfed import tree
from fewfed.errors import ConfigError, RunError
from fewfed.method import Combined, Context, Method, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.pairing import Pairing, pair
from fewfed.phase import Clock, Cohort, Combine, Phase, Role, Upload, Weight
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

_RELEASED = {"pairing": "pairs", "anchor": "global", "credit": "whole", "odd_epoch": "none"}


@dataclass(frozen=True)
class Sem(Wrapper):
    """Pham et al. 2023: half-way through local training, clients pass their models on and finish each other's.

    Leg 1: each client i trains the global model for ceil(E/2) epochs and sends it, with its weight, to a partner j.
    Leg 2: j trains what it received for floor(E/2) epochs and uploads it with the weight of both. The server then does
    what the wrapped method does. Pairing, anchor and credit are readings of the text. Preset `released`: the authors'
    code, which swaps two and two (an odd one out keeps its own), trains floor(E/2) epochs in both legs, anchors both at
    the global model, and credits the uploader of a model with its whole way, so that SCAFFOLD adds the mean gradient of
    two clients to one client's control variate. The default does not mix them.

    The wrapped method begins once, with the global model, and ends once, after leg 2, so what it measures at the start
    is about the global model and itself. Its `end` is shown a start from which the model went as far as *this client*
    moved it in both legs, and the steps of both, so that what it derives from its own movement (a control variate)
    never mixes in the partner's. What travels is the model as the wrapped method broadcasts it; everything else that a
    client works on (a distortion, a projector, anchors) stays with it and goes on in leg 2. Phases before and after
    training stay as they are, and so does what the server trains. Models travel through the server, which sees them, as
    does the partner: four transfers a client and round instead of two.
    """

    name = "sem"
    family = "exchange"
    paper = "Pham et al., SEM: A Simple Yet Efficient Model-agnostic Local Training Mechanism to Tackle Data Sparsity \
and Scarcity in Federated Learning, 2023"
    presets = MappingProxyType({"released": Preset(_RELEASED, note="the authors' code, sparseFL at 4780edb")})

    inner: Method = field(default_factory=FedAvg)
    pairing: Pairing = setting("cycle", "who passes on to whom: a ring, pairs, or a random permutation; self = control")
    anchor: Literal["received", "global"] = setting(
        "received", "which model is 'the broadcast one' in leg 2's loss; 'global' costs a fifth transfer"
    )
    credit: Literal["own", "whole"] = setting(
        "own", "whose movement the uploader answers for: its own in both legs, or the whole way of the uploaded model"
    )
    odd_epoch: Literal["first", "none"] = setting("first", "which leg trains the odd epoch where their number is odd")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.inner.personal_model:
            raise ConfigError(
                f"method 'sem' passes whole models on, but '{self.inner.label}' keeps models at its clients: "
                "wrap a method with one common model"
            )
        for clock in (Clock(0, 2, 2), Clock(1, 2, 2)):
            trained = [phase for phase in self.inner.phases(clock) if phase.trains_on_clients_rows]
            if len(trained) != 1 or trained[0].cohort is not Cohort.ROUND:
                found = ", ".join(f"{phase.name} ({phase.cohort.value})" for phase in trained)
                raise ConfigError(
                    f"method 'sem' halves the one phase in which a round's clients train, but clients of "
                    f"'{self.inner.label}' train in {found or 'none'}: wrap a method such as fedavg"
                )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        if clock.epochs < 2:
            raise ConfigError("method 'sem' trains on two clients in turn: expected epochs of at least 2")
        inner = self.inner.phases(clock)
        return tuple(
            part
            for phase in inner
            for part in (self._legs(phase) if phase.trains_on_clients_rows else [self.around(phase)])
        )

    def own_init(self, setup: Setup) -> Tree:
        return {"seed": torch.tensor(setup.plan.seed), "drawn": torch.tensor(0)}

    def _legs(self, phase: Phase) -> list[Phase]:
        handed_on = {"model": Upload(Combine.KEEP, Role.MODEL), "weight": Upload(Combine.KEEP, Role.COUNTS)}
        if self.credit == "whole":
            handed_on["steps"] = Upload(Combine.KEEP, Role.COUNTS)
        # What the wrapped method reads of its phase during a leg is about that leg: so many steps are so many epochs.
        early, late = (dataclasses.replace(phase, epochs=count) for count in _halves(phase.epochs, self.odd_epoch))
        first = dataclasses.replace(
            early,
            name=f"{phase.name}-leg1",
            does=FirstLeg(self, early),
            uploads=handed_on,
            relayed=frozenset(handed_on),
            keeps_state=True,
        )
        second = dataclasses.replace(
            late,
            name=f"{phase.name}-leg2",
            does=SecondLeg(self, late, dataclasses.replace(phase, epochs=early.epochs + late.epochs)),
            keeps_state=True,
            weight=Weight(2 * phase.weight.per_row, 2 * phase.weight.beside),
        )
        return [first, second]


class FirstLeg(Around[Sem]):
    """Each client trains the global model and hands it in, with its weight, for a partner."""

    def end(self, work: Tree, ctx: Context) -> Report:
        weight = super().end(work, ctx).weight
        model, rest = _parted(work, ctx.shared["model"])
        moved = tree.sub(ctx.shared["model"]["params"], model["params"])
        own = {"work": rest, "moved": moved, "steps": torch.tensor(ctx.steps)}
        upload = {"model": model, "weight": torch.tensor(weight, dtype=torch.float64)}
        if "steps" in ctx.phase.uploads:
            upload["steps"] = own["steps"]
        return Report(upload, {"inner": ctx.state["inner"], "own": own}, weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        own = server["own"]
        partner = pair(self.wrapper.pairing, combined.clients, Random(int(own["seed"]), "sem", int(own["drawn"])))
        received = {
            str(receiver): {name: kept[str(sender)] for name, kept in combined.values.items()}
            for sender, receiver in partner.items()
        }
        return {**server, "own": {**own, "drawn": own["drawn"] + 1, "received": received}}


@dataclass(frozen=True)
class SecondLeg(Around[Sem]):
    """Each client trains the model it received from its partner, and uploads it with the weight of both."""

    both: Phase
    """The wrapped method's phase, of which the two legs are the halves."""

    def inside(self, ctx: Context) -> Context:
        """The model that was received stands for the broadcast one, unless the anchor is the global one."""
        inner = super().inside(ctx)
        if self.wrapper.anchor == "global":
            return inner
        return dataclasses.replace(inner, shared={**inner.shared, "model": _received(ctx)})

    def broadcast(self, server: Tree) -> Tree:
        shared = super().broadcast(server)
        needs_global = self.wrapper.anchor == "global" or self.wrapper.credit == "whole"
        return {name: part for name, part in shared.items() if needs_global or name != "model"}

    def personal(self, server: Tree, client: int) -> Tree:
        return {**super().personal(server, client), "sem": server["own"]["received"].get(str(client), {})}

    def begin(self, ctx: Context) -> Tree:
        kept, received = ctx.state["own"]["work"], _received(ctx)
        return tree.clone({**kept, **{part: {**received[part], **kept[part]} for part in received}})

    def end(self, work: Tree, ctx: Context) -> Report:
        before, received, inside = ctx.state["own"], _received(ctx), self.inside(ctx)
        there = {name: received["params"][name] + change for name, change in before["moved"].items()}
        start = {**received, "params": {**received["params"], **there}}
        steps = ctx.steps + int(before["steps"])
        if self.wrapper.credit == "whole":
            start, steps = ctx.shared["model"], ctx.steps + int(ctx.personal["sem"]["steps"])
        whole = dataclasses.replace(inside, phase=self.both, shared={**inside.shared, "model": start}, steps=steps)
        report = self.both.does.end(work, whole)
        weight = report.weight + float(ctx.personal["sem"]["weight"])
        return report._replace(state=self.remembered(report, ctx, {}), weight=weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        after = super().absorb(server, combined)
        return {**after, "own": {name: after["own"][name] for name in ("seed", "drawn")}}


def _halves(epochs: int, odd: Literal["first", "none"]) -> tuple[int, int]:
    half = epochs // 2
    return (half if odd == "none" else epochs - half), half


def _parted(work: Tree, model: Tree) -> tuple[Tree, Tree]:
    """The parts of a work tree that a broadcast model has, and everything else, which stays at its client."""
    common = {part: {name: work[part][name] for name in leaves} for part, leaves in model.items()}
    own = {
        part: {name: leaf for name, leaf in work[part].items() if name not in leaves} for part, leaves in model.items()
    }
    return common, {**work, **own}


def _received(ctx: Context) -> Tree:
    if not ctx.personal["sem"]:
        raise RunError("it sent no model in leg 1, so it has no partner in leg 2")
    model: Tree = ctx.personal["sem"]["model"]
    return model
