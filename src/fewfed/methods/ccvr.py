"""CCVR."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.errors import ConfigError, RunError
from fewfed.losses.features import class_sums, flat_features
from fewfed.method import Combined, Context, Method, Part, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts import cuts
from fewfed.methods.parts.buffer import fixed_rows
from fewfed.methods.parts.retraining import RETRAINED, Retrain, retraining, with_later
from fewfed.methods.parts.sharing import SendsFeatures
from fewfed.phase import Clock, Cohort, Combine, Phase, Role, Upload, shared_rows
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Wrapper

COLLECT, CALIBRATE = "collect", "calibrate"
MOMENTS = MappingProxyType(
    {
        "sum": Upload(Combine.SUM, Role.STATISTICS),
        "outer": Upload(Combine.SUM, Role.STATISTICS),
        "count": Upload(Combine.SUM, Role.COUNTS),
    }
)


class Gaussians(NamedTuple):
    """Mean and covariance of the features of each class that anybody has, and which classes these are."""

    classes: Tensor
    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class CCVR(Wrapper):
    """Luo et al., NeurIPS 2021: after any method's last round, the classifier is retrained on all clients' features.

    Default, as FLea compares with it: every client uploads the penultimate features (eval mode) of a fixed tenth of its
    rows, and the server retrains the stages after them for 20 epochs of Adam. With `cut`, features of that stage and
    all stages after it (FLea's ICLR Table 9); cut "input" shares raw rows and retrains the whole network. Preset
    `gaussian`, the original: clients upload per-class sums, sums of outer products and counts (d² numbers a class),
    whose totals give the pooled mean and covariance without a single client's value, and the server samples Gaussians.
    With `start`, every round from that one on ends so; what is calibrated predicts, and training goes on without it.
    FLea's script takes the rows of the first 100 clients only (register C21): not offered. The last epoch counts, not
    the best on the test part.
    """

    name = "ccvr"
    family = "feature sharing"
    paper = "Luo et al., No Fear of Heterogeneity: Classifier Calibration for FL with Non-IID Data, NeurIPS 2021"
    presets = MappingProxyType({"gaussian": Preset({"form": "gaussian"}, note="the original: no features are shared")})
    neutral = MappingProxyType({"epochs": 0})

    inner: Method = field(default_factory=FedAvg)
    form: Literal["features", "gaussian"] = setting("features", "retrain on shared features, or on sampled ones")
    cut: str = setting("", "stage whose features are used; empty = the last but one; input = raw rows are shared")
    share: float = setting(0.1, "form 'features': fraction of each client's rows that is shared; FLea 0.1", gt=0, le=1)
    samples: int = setting(2000, "form 'gaussian': rows sampled a class; a public re-implementation 2000", ge=1)
    start: int = setting(0, "round, from 1, after which and after all later ones it calibrates; 0 = the last", ge=0)
    train: bool = setting(True, "the inner method trains; false = the first model is calibrated (with start_from)")
    epochs: int = setting(20, "epochs of retraining; 0 = none; FLea 20", ge=0)
    batch: int = setting(64, "rows of a batch of retraining; FLea 64", ge=1)
    lr: float = setting(1e-4, "learning rate of retraining; FLea 1e-4", gt=0)

    def check(self, setup: Setup) -> None:
        self.inner.check(setup)
        if self.inner.personal_model:
            raise ConfigError(f"method 'ccvr' retrains one common model, which '{self.inner.label}' does not have")
        if any(isinstance(method, CCVR) for method in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' calibrates already: wrap it in 'ccvr' once")
        if self.form == "gaussian" and not setup.task.classes:
            raise ConfigError("method 'ccvr' samples features of each class: expected a classification task")
        if self.form == "gaussian" and self.position(setup) != setup.net.penultimate:
            raise ConfigError(f"cut '{self.cut}': form 'gaussian' retrains the last stage only; leave cut empty")
        if not self.train and not self.epochs:
            raise ConfigError("method 'ccvr': with train = false and epochs = 0 there is nothing to do")
        if self.position(setup) == len(setup.net.stages):
            raise ConfigError(f"cut '{self.cut}' leaves nothing to retrain: expected a stage before the last")
        if self.form == "features" and self.epochs:
            cuts.refuse_affine(setup, self.position(setup), self.name)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        before = super().phases(clock) if self.train else ()
        due = clock.last or not self.train or 0 < self.start <= clock.round + 1
        if not due or not self.epochs:
            return before
        rows = shared_rows(self.share, features=cuts.role_at(self.cut), labels=Role.LABELS)
        return (
            *before,
            Phase(COLLECT, Collect(self), 0, rows if self.form == "features" else MOMENTS, Cohort.ALL),
            retraining(CALIBRATE, Calibrate(self), self.epochs, self.batch, self.lr),
        )

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model: Tree = server["own"].get("calibrated") or super().predictor(server, state)
        return model

    def position(self, known: Setup | Context) -> int:
        """Stages before the cut."""
        return cuts.position(known, self.cut) if self.cut else known.net.penultimate

    def trained(self, server: Tree) -> Tree:
        """The inner method's model, which is calibrated anew each time."""
        return super().predictor(server, {})


class Collect(SendsFeatures, Part[CCVR]):
    """After a round every client uploads features of some rows, or the moments of all."""

    def broadcast(self, server: Tree) -> Tree:
        return {"model": self.method.trained(server)}

    def shares_at(self, known: Setup | Context) -> int:
        return self.method.position(known)

    def chosen(self, ctx: Context) -> Tensor:
        return torch.arange(ctx.size) if self.method.form == "gaussian" else fixed_rows(ctx, self.method.share)

    def presented(self, work: Tree, x: Tensor) -> Tensor:
        return self.method.presented(work, x)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        if self.method.form == "features":
            return report
        features, labels = flat_features(report.upload["features"]), report.upload["labels"]
        return report._replace(upload=moments(features, labels, ctx.task.classes))

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return {**server, "own": combined.values}


class Calibrate(Retrain[CCVR]):
    """The server retrains the stages behind the cut on what it collected."""

    def start(self, known: Setup | Context) -> int:
        return self.method.position(known)

    def broadcast(self, server: Tree) -> Tree:
        return {"model": self.method.trained(server), **server["own"]}

    def data(self, ctx: Context) -> Examples:
        if self.method.form == "features":
            if not len(ctx.shared["labels"]):
                raise RunError(
                    "no client sent a row to calibrate with: expected some; a defence may leave out too many"
                )
            return Examples(ctx.shared["features"], ctx.shared["labels"])
        totals = pooled(ctx.shared["sum"], ctx.shared["outer"], ctx.shared["count"])
        return sampled(totals, self.method.samples, ctx.plan.random(ctx.clock.round, "gaussian", ctx.client), ctx.dtype)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return {**server, "own": {"calibrated": with_later(self.method.trained(server), combined.values[RETRAINED])}}


def moments(z: Tensor, y: Tensor, classes: int) -> Tree:
    """What one client adds to everybody's moments: per class the sum, the sum of outer products and the count.

    In double precision, whatever the features are: `pooled` takes the square of the mean away again, and where the mean
    is a thousand times the deviation, single precision has no digit left of what remains. Around the client's own mean
    first, so that products of large numbers are rounded once and not once a row.
    """
    z = z.double()
    sums, counts = class_sums(z, y, classes)
    mean = sums / counts.clamp(min=1).unsqueeze(1)
    apart = z - mean[y]
    scatter = torch.stack([apart[y == c].T @ apart[y == c] for c in range(classes)])
    outer = scatter + sums.unsqueeze(2) * mean.unsqueeze(1)
    return {"sum": sums, "outer": outer, "count": counts}


def pooled(sums: Tensor, outer: Tensor, count: Tensor) -> Gaussians:
    """Mean and unbiased covariance of all rows of a class together; one row alone has covariance 0."""
    classes = (count > 0).nonzero().flatten()
    n = count[classes].double().reshape(-1, 1)
    mean = sums[classes].double() / n
    scatter = outer[classes].double() - n.unsqueeze(2) * mean.unsqueeze(2) * mean.unsqueeze(1)
    # What rounding leaves of a single row's scatter is not a covariance.
    covariance = torch.where(n.unsqueeze(2) > 1, scatter / (n - 1).clamp(min=1).unsqueeze(2), 0.0)
    return Gaussians(classes, mean, (covariance + covariance.mT) / 2)


def sampled(gaussians: Gaussians, samples: int, random: Random, dtype: torch.dtype = torch.float32) -> Examples:
    """`samples` rows of every class, from its Gaussian."""
    rows = []
    for mean, covariance in zip(gaussians.mean, gaussians.covariance, strict=True):
        noise = random.normal(samples, len(mean)).to(mean)
        rows.append((mean + noise @ safe_root(covariance).T).to(dtype))
    return Examples(torch.cat(rows), gaussians.classes.repeat_interleave(samples))


def safe_root(covariance: Tensor) -> Tensor:
    """A Cholesky root, with as little added to the diagonal as makes one exist: few rows give singular covariances."""
    # No eigenvalue lies below minus this bound (Gershgorin), so the last attempt cannot fail.
    bound = covariance.abs().sum(1).max()
    root = torch.zeros_like(covariance)
    for part in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 2.0):
        factor = torch.linalg.cholesky_ex(covariance + part * bound * torch.eye(len(covariance)).to(covariance))
        root = factor.L
        if not bool(factor.info) or not bool(bound):
            break
    return root
