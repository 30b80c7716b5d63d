"""All data in one place."""

from dataclasses import dataclass
from types import MappingProxyType

from fewfed import tree
from fewfed.method import Batch, Context, Differentiate, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.kept_adam import PLAIN_STEPS, direction, fresh_moments
from fewfed.phase import MODEL, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.tree import Tree


@dataclass(frozen=True)
class Single(FedAvg):
    """No federation: one model trained on the union of all clients' rows, E epochs a round. The upper reference.

    Preset `sem`: SEM's SingleSet as released, with one Adam for the whole run.
    """

    name = "single"
    family = "reference"
    paper = "none: the upper reference (SEM's SingleSet)"
    steps_differ = "a round is E epochs over every client's rows, not over one client's"
    neutral = None

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, cohort=Cohort.UNION),)


@dataclass(frozen=True)
class SingleSet(Single):
    """SEM's SingleSet as released: torch's Adam, made once, so that its moments go on from round to round.

    It is Adam whatever optimiser the clients of a comparison have. A batch of the authors has K·B rows, as many as the
    K clients of a round take in one step: `batch` must be set so, since a method knows no cohort.
    """

    name = "single"
    variant = "sem"
    own_training = MappingProxyType({"lr": 1e-3, "lr_decay": 0.0})

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {**MODEL, "moments": Upload(Combine.MEAN, Role.UPDATE)}
        return (Phase("train", self, clock.epochs, uploads, Cohort.UNION, training=PLAIN_STEPS),)

    def server_init(self, setup: Setup) -> Tree:
        server = super().server_init(setup)
        return {**server, "moments": fresh_moments(server["model"]["params"])}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "moments")}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone({**ctx.shared["model"], "moments": ctx.shared["moments"]})

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        slope, terms = differentiate(work)
        return direction(work["moments"], work["params"], slope, 0.0), terms

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "moments": work["moments"]})
