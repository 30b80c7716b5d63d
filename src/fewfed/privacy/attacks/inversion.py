"""Inversion: what does a class look like, from the model alone?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.network import Network
from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.attacker_rows import halves, matched
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.gradient_matching import variation
from fewfed.privacy.attacks.member_targets import Sent, broadcast
from fewfed.privacy.fitting import answers, descend, fit
from fewfed.tree import Tree

_EACH = 4
"""Representatives of a class, from different beginnings."""
_STEPS = 400
_RATE = 0.1
_SMOOTH, _NEAR = 0.1, 0.02
"""Weights of the total variation and of the distance to the mean row, in deviations."""
_EPOCHS, _BATCH, _LR = 40, 16, 2e-3
"""How the network that judges is trained."""
_LEAST = 8


class Inversion:
    """Inputs that the model is sure of, judged by a network that has nothing to do with it."""

    name = "inversion"
    title = "what does a class look like, from the model alone?"

    def why_not(self, case: Case) -> str:
        if not case.job.task.classes:
            return "labels of this task are no classes: there are no representatives of any"
        if len(case.held) < _LEAST:
            return f"the attacker holds {len(case.held)} test rows: expected at least {_LEAST}"
        if broadcast(case, case.exchanges()) is None:
            return "no whole model was broadcast after clients whose packets are recorded had trained it"
        return ""

    def findings(self, case: Case, tell: Callable[[str], None]) -> list[Finding]:
        sent = broadcast(case, case.exchanges())
        if sent is None:
            return []
        mine, others = halves(case.held, case.seed)
        tell(f"the model broadcast in round {sent.exchanged.round}")
        (suspect,) = sent.suspects
        labels = torch.arange(case.job.task.classes).repeat_interleave(max(1, round(_EACH * case.effort)))
        made = representatives(case, suspect.model, labels, mine.x)
        tell("training the network that judges")
        judge = _judge(case, others)
        hits = int((_said(case, judge, made) == labels).sum())
        right = float((_said(case, judge, mine.x) == mine.y.cpu()).double().mean())
        recognised = Measure(
            "representatives that an independent network recognises",
            hits / len(labels),
            *intervals.of_share(hits, len(labels)),
            len(labels),
            1 / case.job.task.classes,
        )
        measures = (recognised, *_nearness(case, made, labels, suspect.held, others))
        return [_finding(sent, measures, right)]


def representatives(case: Case, model: Tree, labels: Tensor, like: Tensor) -> Tensor:
    """For each label an input that the model gives it, smooth and near what rows look like on average."""
    device, net = case.device, case.job.net
    low, high = float(like.min()), float(like.max())
    mean, deviation = like.mean(0).to(device), like.std().clamp(min=1e-6).to(device)
    placed, y = tree.to(model, device), labels.to(device)

    def rows(free: Tensor) -> Tensor:
        return low + (high - low) * torch.sigmoid(free)

    def objective(free: Tensor) -> Tensor:
        x = rows(free)
        said = net.apply(placed, x, train=False)
        unlikely = case.job.task.loss(said[0] if isinstance(said, tuple) else said, y)
        far = ((x - mean) / deviation).square().mean()
        return unlikely + _SMOOTH * variation(x) / (high - low) + _NEAR * far

    random = torch.Generator().manual_seed(case.seed)
    middle = ((like.mean(0) - low) / max(high - low, 1e-12)).clamp(0.05, 0.95).logit()
    start = middle + 0.5 * torch.randn((len(labels), *like.shape[1:]), generator=random).to(middle)
    steps = max(20, int(_STEPS * case.effort))
    return rows(descend(objective, start.to(device, net.dtype), steps=steps, lr=_RATE)).cpu()


def _judge(case: Case, rows: Examples) -> tuple[Network, Tree]:
    """A network of the same kind with other weights to begin with, trained on rows that nobody else trained on."""
    net = _begun_anew(case.job.net, case.seed)
    epochs = max(5, int(_EPOCHS * case.effort))
    return net, fit(
        net, rows, case.job.task, epochs=epochs, batch=_BATCH, lr=_LR, optimizer="adam", seed=case.seed,
        device=case.device,
    )  # fmt: skip


def _begun_anew(net: Network, seed: int) -> Network:
    """With the numbers of every array of weights in another order: as likely a beginning as the one it had."""
    random = torch.Generator().manual_seed(seed + 1)
    model = net.model()
    params = {
        name: leaf.flatten()[torch.randperm(leaf.numel(), generator=random)].reshape(leaf.shape)
        for name, leaf in model["params"].items()
    }
    return net.starting_from({**model, "params": params})


def _said(case: Case, judge: tuple[Network, Tree], x: Tensor) -> Tensor:
    return answers(judge[0], judge[1], x.to(case.device)).argmax(1).cpu()


def _nearness(case: Case, made: Tensor, labels: Tensor, members: Examples, others: Examples) -> list[Measure]:
    """How much nearer representatives are to rows that were trained on than to others of the same class: as many of
    each, so that none has more to be near to."""
    inside, outside = matched(members, others, case.job.task.classes, case.seed)
    ratios = []
    for one, label in zip(made.flatten(1).double(), labels.tolist(), strict=True):
        near = [
            torch.cdist(one[None], part.x[part.y == label].flatten(1).double().cpu())
            for part in (members.rows(inside), others.rows(outside))
        ]
        if near[0].numel() and near[1].numel():
            ratios.append(float(near[0].min()) / max(float(near[1].min()), 1e-12))
    if len(ratios) < 2:
        return []
    values = torch.tensor(ratios)
    what = "distance to the nearest row trained on, in distances to the nearest other row"
    return [Measure(what, float(values.mean()), *intervals.of_mean(values), len(ratios), 1.0, larger_leaks=False)]


def _finding(sent: Sent, measures: tuple[Measure, ...], accuracy: float) -> Finding:
    exchanged = sent.exchanged
    threat = Threat(
        "whoever gets the model",
        f"the model broadcast in round {exchanged.round}",
        "the mean and range of rows of the same kind, the network",
    )
    note = f"the judging network is right on {100 * accuracy:.0f} % of real rows it has not seen"
    return Finding("inversion", "", threat, exchanged.round, exchanged.phase, measures, note)
