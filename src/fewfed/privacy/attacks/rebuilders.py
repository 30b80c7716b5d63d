"""Attackers that learn to turn what is sent into inputs from pairs that they made from rows of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.network import Network
from fewfed.privacy.attacks import decoders, ridge
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.finding import Threat
from fewfed.privacy.attacks.pairs import Known, Pairs, quiet_of
from fewfed.privacy.fitting import Rebuilding, answers, fit
from fewfed.tree import Tree

_STEPS_ON_HOST, _STEPS_ON_GPU = 300, 6000
_BATCH = 64
_NOTHING_LEFT = 1e-5
"""Deviations of the inputs: what ridge regression has nearer than that needs no network."""
_MOST_CLASSES = 100
"""Classes that are told apart: columns of classes that are not there stay 0."""

READS = "the rows that sites sent, one by one, and the model that was sent out in that round"
LEARNS = (
    "rows of the same kind that nobody trained on, the network, and the method with its defences, which it applies to "
    "its own rows to learn from"
)
TOLD = Threat("the server, or a site that the rows are handed to", READS, LEARNS)


class Rebuilder(Protocol):
    """One attacker of several."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """What it does, in a line."""

    @property
    def threat(self) -> Threat: ...

    @property
    def has_pairs(self) -> bool:
        """Whether it may learn from what its own rows would be sent as, for which it takes the model."""

    def rebuild(self, known: Known, tell: Tell) -> Tensor | str:
        """One flat input for each row of `known.victims`, or why it cannot be tried."""


@dataclass(frozen=True)
class ByRidge:
    """A ridge regression in closed form.

    From rows with the noise that a defence adds, or without it: who learns from noise takes it for something said where
    rows are few. With columns scaled alike, or as they are, where noise is as wide in all. Whichever is best on rows
    held out, which have the noise.
    """

    name: str = "ridge"
    what: str = "ridge regression, its penalty and scaling chosen on rows held out"
    threat: Threat = TOLD
    has_pairs: bool = True

    def rebuild(self, known: Known, tell: Tell) -> Tensor:
        tell("what its own rows would be sent as without noise")
        quiet = quiet_of(known)
        tried = [
            ridge_of(learn, known.held, scaling)
            for learn in (known.learn, *([] if quiet is None else [quiet]))
            for scaling in (ridge.Standard.of, ridge.Standard.centred)
        ]
        best = min(tried, key=lambda one: _error(one, known.held))
        return best(seen(known.victims, known.labels))


def _error(model: ridge.Ridge, held: Pairs) -> float:
    error = float((model(seen(held.sent, held.labels)).double() - held.inputs).square().mean())
    return error if math.isfinite(error) else math.inf


@dataclass(frozen=True)
class ByMinimalDecoder:
    """The published decoder, trained until it gets no better on rows held out."""

    name: str = "decoder"
    what: str = "the linear decoder of Xia et al. 2024"
    threat: Threat = TOLD
    has_pairs: bool = True

    def rebuild(self, known: Known, tell: Tell) -> Tensor:
        scale = Scales.of(known)
        net = decoders.network(self.name, lambda: decoders.minimal(known.sent_shape, known.shape), known.case.seed)
        learn, held = (
            Examples(scale.sent(part.sent), scale.centred(part.inputs)) for part in (known.learn, known.held)
        )
        model = trained(known, net, learn, held, tell, lr=1e-2)
        return scale.inputs(answers(net, model, scale.sent(known.victims)))


@dataclass(frozen=True)
class ByConvolutions:
    """A deep decoder that begins with what ridge regression says and adds to it."""

    name: str = "convolutional"
    what: str = "a deep decoder over the ridge regression: convolutions, or dense layers where inputs have no places"
    threat: Threat = TOLD
    has_pairs: bool = True

    def rebuild(self, known: Known, tell: Tell) -> Tensor:
        return refined(known, known.learn, known.held, tell)


def refined(known: Known, learn: Pairs, held: Pairs, tell: Tell) -> Tensor:
    """What the deep decoder makes of the victims' rows after learning from some pairs."""
    known = replace(known, learn=learn, held=held)
    scale, guessing = Scales.of(known), ridge_of(learn, held)
    # On the rows it was fitted to ridge is better than on others: the network must learn from guesses as it will see.
    guesses = ridge.cross_fitted(seen(learn.sent, learn.labels), learn.inputs, guessing.penalty, known.case.seed)
    others = guessing(seen(held.sent, held.labels))
    size = float((learn.inputs - guesses).square().mean().sqrt().clamp(min=1e-12))

    first = guessing(seen(known.victims, known.labels))
    if size < _NOTHING_LEFT * scale.deviation:
        return first

    def packed(sent: Tensor, guess: Tensor) -> Tensor:
        return torch.cat([scale.sent(sent), scale.centred(guess)], 1)

    net = decoders.network("refiner", lambda: decoders.refining(known.sent_shape, known.shape), known.case.seed)
    model = trained(
        known,
        net,
        Examples(packed(learn.sent, guesses), (learn.inputs - guesses) / size),
        Examples(packed(held.sent, others), (held.inputs - others) / size),
        tell,
        lr=1e-3,
    )
    return first + size * answers(net, model, packed(known.victims, first))


def ridge_of(learn: Pairs, held: Pairs, scaling: ridge.Scaling = ridge.Standard.of) -> ridge.Ridge:
    shown = seen(held.sent, held.labels)
    return ridge.chosen(seen(learn.sent, learn.labels), learn.inputs, shown, held.inputs, scaling)


def seen(sent: Tensor, labels: Tensor | None) -> Tensor:
    """What was sent, with the labels that came with it as further columns."""
    if labels is None:
        return sent
    if labels.is_floating_point():
        return torch.cat([sent, labels.to(sent).reshape(len(sent), -1)], 1)
    if labels.dim() > 1:  # Masks: a class for each pixel says too much in too many columns.
        return sent
    known = torch.arange(_MOST_CLASSES, device=sent.device)
    return torch.cat([sent, (labels[:, None] == known).to(sent)], 1)


def trained(known: Known, net: Network, learn: Examples, held: Examples, tell: Tell, *, lr: float) -> Tree:
    """A decoder's model after as many steps as the effort allows."""
    steps = known.case.effort * (_STEPS_ON_GPU if known.device.type == "cuda" else _STEPS_ON_HOST)
    return fit(
        net,
        learn,
        Rebuilding(),
        epochs=max(1, round(steps * _BATCH / len(learn))),
        batch=_BATCH,
        lr=lr,
        seed=known.case.seed,
        device=known.device,
        held=held,
        tell=tell,
    )


@dataclass(frozen=True)
class Scales:
    """What was sent with mean 0 and deviation 1 (one for each channel), and inputs likewise (one deviation in all)."""

    sent_mean: Tensor
    sent_scale: Tensor
    mean: Tensor
    deviation: float

    @classmethod
    def of(cls, known: Known) -> Scales:
        planes = known.learn.sent.reshape(-1, *(known.sent_shape or (1,)))
        axes = [axis for axis in range(planes.dim()) if axis != 1]
        mean, deviation = (
            value.expand(1, *planes.shape[1:]).reshape(1, -1)
            for value in (planes.mean(axes, keepdim=True), planes.std(axes, correction=0, keepdim=True))
        )
        least = 1e-4 * deviation.max().clamp(min=1e-12)
        inputs = known.learn.inputs
        spread = float((inputs - inputs.mean(0)).square().mean().sqrt().clamp(min=1e-12))
        return cls(mean, 1 / deviation.clamp(min=float(least)), inputs.mean(0), spread)

    def sent(self, values: Tensor) -> Tensor:
        return (values - self.sent_mean) * self.sent_scale

    def centred(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.deviation

    def inputs(self, centred: Tensor) -> Tensor:
        return centred * self.deviation + self.mean
