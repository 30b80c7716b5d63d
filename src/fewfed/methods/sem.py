"""SEM."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.errors import ConfigError, RunError
from fewfed.method import Batch, Combined, Context, Differentiate, Report, Setup
from fewfed.pairing import Pairing, pair
from fewfed.phase import Clock, Cohort, Combine, Phase
from fewfed.plan import Draws
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Wrapper


@dataclass(frozen=True, kw_only=True)
class Leg(Phase):
    """One of the two halves of the wrapped method's training phase."""

    of: Phase
    second: bool


@dataclass(frozen=True)
class Sem(Wrapper):
    """Pham et al. 2023: half-way through local training, clients pass their models on and finish each other's.

    Leg 1: each client i trains the global model for ceil(E/2) epochs and sends it, with its weight, to a partner j.
    Leg 2: j trains what it received for floor(E/2) epochs and uploads it with the weight of both. The server then does
    what the wrapped method does. No released code exists; pairing and anchor are readings of the text (unverified).

    The wrapped method begins once, with the global model, and ends once, after leg 2, so what it measures at the start
    is about the global model and itself. Its `end` is shown a start from which the model went as far as *this client*
    moved it in both legs, and the steps of both, so that what it derives from its own movement (a control variate)
    never mixes in the partner's. Phases before and after training stay as they are. Models travel through the server,
    which sees them, as does the partner: four transfers a client and round instead of two.
    """

    name = "sem"
    family = "exchange"
    paper = "Pham et al., SEM: A Simple Yet Efficient Model-agnostic Local Training Mechanism to Tackle Data Sparsity \
and Scarcity in Federated Learning, 2023"

    pairing: Pairing = setting("cycle", "who passes on to whom: a ring, pairs, or a random permutation; self = control")
    anchor: Literal["received", "global"] = setting(
        "received", "which model is 'the broadcast one' in leg 2's loss; 'global' costs a fifth transfer"
    )

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.inner.personal_model:
            raise ConfigError(
                f"method 'sem' passes whole models on, but '{self.inner.label}' keeps models at its clients: "
                "wrap a method with one common model"
            )
        for clock in (Clock(0, 2, 2), Clock(1, 2, 2)):
            trained = [phase for phase in self.inner.phases(clock) if phase.epochs]
            if len(trained) != 1 or trained[0].cohort is not Cohort.ROUND:
                raise ConfigError(
                    f"method 'sem' halves one training phase of a round's clients, but '{self.inner.label}' trains in "
                    f"{', '.join(phase.name for phase in trained) or 'none'}: wrap a method such as fedavg"
                )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        if clock.epochs < 2:
            raise ConfigError("method 'sem' trains on two clients in turn: expected epochs of at least 2")
        return tuple(part for phase in self.inner.phases(clock) for part in (_legs(phase) if phase.epochs else [phase]))

    def server_init(self, setup: Setup) -> Tree:
        pairings = {"seed": torch.tensor(setup.plan.seed), "drawn": torch.tensor(0)}
        return {**super().server_init(setup), "sem": pairings}

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        shared = super().broadcast(server, _original(phase))
        if isinstance(phase, Leg) and phase.second and self.anchor == "received":
            return {name: part for name, part in shared.items() if name != "model"}
        return shared

    def personal(self, server: Tree, phase: Phase, client: int) -> Tree:
        own = super().personal(server, _original(phase), client)
        if isinstance(phase, Leg) and phase.second:
            return {**own, "sem": server["sem"]["received"].get(str(client), {})}
        return own

    def data(self, ctx: Context) -> Examples:
        return super().data(self._inside(ctx))

    def draw(self, draws: Draws, ctx: Context, size: int) -> Tree:
        return super().draw(draws, self._inside(ctx), size)

    def begin(self, ctx: Context) -> Tree:
        if not (isinstance(ctx.phase, Leg) and ctx.phase.second):
            return super().begin(self._inside(ctx))
        return tree.clone({**ctx.state["sem"]["work"], **_received(ctx)})

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return super().loss(work, self._inside(ctx), batch)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        return super().gradient(differentiate, work, self._inside(ctx), batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        inside = self._inside(ctx)
        if not isinstance(ctx.phase, Leg):
            return super().end(work, inside)
        if not ctx.phase.second:
            return self._pass_on(work, ctx, super().end(work, inside).weight)
        before = ctx.state["sem"]
        received = _received(ctx)
        start = {**received, "params": {**received["params"], **_sum(received["params"], before["moved"])}}
        both = dataclasses.replace(
            inside, shared={**inside.shared, "model": start}, steps=ctx.steps + int(before["steps"])
        )
        report = super().end(work, both)
        return report._replace(weight=report.weight + float(ctx.personal["sem"]["weight"]))

    def absorb(self, server: Tree, phase: Phase, combined: Combined) -> Tree:
        if not isinstance(phase, Leg):
            return super().absorb(server, phase, combined)
        pairings = server["sem"]
        if phase.second:
            after = super().absorb(server, phase.of, combined)
            return {**after, "sem": {name: pairings[name] for name in ("seed", "drawn")}}
        draws = Draws(int(pairings["seed"]), "sem", int(pairings["drawn"]))
        partner = pair(self.pairing, combined.clients, draws)
        received = {
            str(receiver): {name: combined.values[name][str(sender)] for name in ("model", "weight")}
            for sender, receiver in partner.items()
        }
        return {**server, "sem": {**pairings, "drawn": pairings["drawn"] + 1, "received": received}}

    def _inside(self, ctx: Context) -> Context:
        """What the wrapped method sees: its own phase and state, and in leg 2 the anchor as the broadcast model."""
        if not isinstance(ctx.phase, Leg):
            return ctx
        shared = ctx.shared
        if ctx.phase.second and self.anchor == "received":
            shared = {**shared, "model": _received(ctx)}
        return dataclasses.replace(
            ctx, phase=ctx.phase.of, shared=shared, personal=_without_own(ctx.personal), state=_without_own(ctx.state)
        )

    def _pass_on(self, work: Tree, ctx: Context, weight: float) -> Report:
        start = ctx.shared["model"]["params"]
        moved = {name: leaf - work["params"][name] for name, leaf in start.items()}
        rest = {name: part for name, part in work.items() if name not in ("params", "buffers")}
        upload = {
            "model": {"params": work["params"], "buffers": work["buffers"]},
            "weight": torch.tensor(weight, dtype=torch.float64),
        }
        memory = {"work": rest, "moved": moved, "steps": torch.tensor(ctx.steps)}
        return Report(upload, {**ctx.state, "sem": memory}, weight)


def _legs(phase: Phase) -> list[Phase]:
    relay = {"model": Combine.KEEP, "weight": Combine.KEEP}
    first, second = phase.epochs - phase.epochs // 2, phase.epochs // 2
    return [
        Leg(
            name,
            epochs,
            uploads,
            relayed=relayed,
            keeps_state=True,
            training=phase.training,
            of=phase,
            second=is_second,
        )
        for name, epochs, uploads, relayed, is_second in (
            (f"{phase.name}-leg1", first, relay, frozenset(relay), False),
            (f"{phase.name}-leg2", second, phase.uploads, frozenset[str](), True),
        )
    ]


def _original(phase: Phase) -> Phase:
    return phase.of if isinstance(phase, Leg) else phase


def _received(ctx: Context) -> Tree:
    if not ctx.personal["sem"]:
        raise RunError("it sent no model in leg 1, so it has no partner in leg 2")
    model: Tree = ctx.personal["sem"]["model"]
    return model


def _sum(received: Tree, moved: Tree) -> Tree:
    return {name: received[name] + change for name, change in moved.items()}


def _without_own(part: Tree) -> Tree:
    return {name: value for name, value in part.items() if name != "sem"}
