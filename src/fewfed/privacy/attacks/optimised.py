"""The attacker that looks for the inputs which, sent, would be what was sent: the most probable ones.

What is sent is compared with the output of every stage of the network on the attacker's own rows; the nearest stage is
the model of sending, and what it leaves unexplained (noise, rounding, clipping) is the noise of the likelihood. So the
attacker is told of the defence without knowing its name. The prior is normal, as the attacker's rows are, and for
pictures neighbouring pixels are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.network import Network
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.decoders import is_picture
from fewfed.privacy.attacks.finding import Threat
from fewfed.privacy.attacks.pairs import Known, flat, imitations
from fewfed.privacy.attacks.rebuilders import TOLD, ridge_of, seen
from fewfed.privacy.fitting import descend
from fewfed.tree import Tree

_SURE = 4.0
"""Standard errors by which a stage must explain a row better than it explains another one."""
_ROWS = 200
_STEPS_ON_HOST, _STEPS_ON_GPU, _LEAST_STEPS = 150, 1000, 100
_RANK = 1024
_LOOSE = 0.05
"""The part of the prior's variance that is alike in all directions: rows of the attacker are few."""
_SMOOTH, _RATE = 0.1, 0.07
_QUIET = 1e-4
"""The least noise, as a part of the variance of what is sent: below it, rounding and the search decide."""
_AT_ONCE = 64


@dataclass(frozen=True)
class ByOptimisation:
    """The most probable inputs, looked for by descent from what ridge regression says."""

    name: str = "inversion"
    what: str = "the most probable inputs under the stage of the network that sends them and a normal prior"
    threat: Threat = TOLD
    has_pairs: bool = True

    def rebuild(self, known: Known, tell: Tell) -> Tensor | str:
        sending = sending_of(known)
        if sending is None:
            return "what is sent is explained by no stage of the network: there is nothing to search through"
        classes = Classes.of(known)
        prior = Prior.of(classes.rest)
        expected = classes.expected(known.labels, len(known.victims))
        start = prior.coordinates(ridge_of(known.learn, known.held)(seen(known.victims, known.labels)) - expected)
        usual = _STEPS_ON_GPU if known.device.type == "cuda" else _STEPS_ON_HOST
        steps = max(_LEAST_STEPS, int(known.case.effort * usual))
        found = []
        for first in range(0, len(start), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            tell(f"rows {first + 1} to {first + len(start[part])} of {len(start)}")
            search = _Search(known, sending, prior, expected[part], known.victims[part])
            found.append(search.found_from(start[part], steps))
        return torch.cat(found)


@dataclass(frozen=True)
class _Search:
    """For the inputs behind some rows."""

    known: Known
    sending: Sending
    prior: Prior
    expected: Tensor
    sent: Tensor

    def found_from(self, start: Tensor, steps: int) -> Tensor:
        """The mean of the `behind` inputs that together explain each row best. They begin a little apart, since equal
        ones would stay equal."""
        behind, rows = self.known.learn.behind, len(start)
        random = torch.Generator().manual_seed(self.known.case.seed)
        apart = torch.randn(rows, behind, start.shape[1], generator=random).to(start)
        begin = start[:, None] + (0.5 * apart if behind > 1 else 0)
        smooth = _Smooth.of(self.known) if is_picture(self.known.shape) else None

        def surprise(coordinates: Tensor) -> Tensor:
            inputs = self._inputs(coordinates)
            features = self.sending(inputs.reshape(-1, *self.known.shape)).reshape(rows, behind, -1).mean(1)
            likelihood: Tensor = (features - self.sent).square().sum() / (2 * self.sending.noise)
            total = likelihood + coordinates.square().sum() / 2
            return total if smooth is None else total + smooth(inputs)

        return self._inputs(descend(surprise, begin, steps=steps, lr=_RATE)).mean(1)

    def _inputs(self, coordinates: Tensor) -> Tensor:
        apart = self.prior.inputs(coordinates.flatten(0, 1)).reshape(*coordinates.shape[:2], -1)
        return self.expected[:, None] + apart


@dataclass(frozen=True)
class Sending:
    """What is sent, as far as a stage of the network explains it."""

    net: Network
    model: Tree
    stop: int
    gain: float
    noise: float
    """The variance of what is left."""
    surely: float
    """Standard errors by which it explains a row better than another one."""

    def __call__(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.net.apply(self.model, inputs, stop=self.stop, train=False)
        return self.gain * found.flatten(1)


def sending_of(known: Known) -> Sending | None:
    """The stage, and the model in what was broadcast, that explain best what is sent; None where none does."""
    case = known.case
    rows = imitations(case, known.exchanged, known.rows, _ROWS, seed=2)
    sent, device = flat(rows.sent, known.device), known.device
    x = rows.rows.x.to(device)[rows.origins.clamp(min=0).to(device)]
    weight = rows.present.to(device=device, dtype=x.dtype)
    weight = weight / weight.sum(1, keepdim=True).clamp(min=1)
    spread = float((sent - sent.mean(0)).square().mean())
    best: Sending | None = None
    for model, stop in _places(tree.to(known.exchanged.broadcast, device), case.job.net):
        with torch.no_grad():
            found = case.job.net.apply(model, x.flatten(0, 1), stop=stop, train=False)
        if not isinstance(found, Tensor) or found[0].numel() != sent.shape[1]:
            continue
        each = found.reshape(*x.shape[:2], -1)
        features = (each * weight[..., None]).sum(1)
        gain = float((features * sent).sum() / features.square().sum().clamp(min=1e-12))
        noise = max(float((sent - gain * features).square().mean()), _QUIET * spread)
        if best is None or noise < best.noise:
            best = Sending(case.job.net, model, stop, gain, noise, _surely(gain * features, sent))
    return best if best is not None and best.surely >= _SURE else None


def _surely(features: Tensor, sent: Tensor) -> float:
    """Standard errors by which rows are nearer to their own features than to those of the next row."""
    nearer = (sent - features.roll(1, 0)).square().mean(1) - (sent - features).square().mean(1)
    return float(nearer.mean() / (nearer.std() / len(nearer) ** 0.5).clamp(min=1e-12))


def _places(broadcast: Mapping[str, Any], net: Network) -> Iterator[tuple[Tree, int]]:
    """Every cut of every model of the network in what was broadcast; before the first stage no model is needed."""
    own = net.model()
    yield own, 0
    for node in _nodes(broadcast):
        if all(_has(node.get(part), wanted) for part, wanted in own.items()):
            for stop in range(1, len(net.stages) + 1):
                yield dict(node), stop


def _has(part: Any, wanted: Tree) -> bool:
    return isinstance(part, dict) and all(
        isinstance(part.get(key), Tensor) and part[key].shape == leaf.shape for key, leaf in wanted.items()
    )


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for value in node.values():
        if isinstance(value, dict):
            yield from _nodes(value)


@dataclass(frozen=True)
class Classes:
    """The mean input of each class, where labels are sent, and what is left of the attacker's rows without it."""

    means: Tensor
    """The last is that of all classes."""
    rest: Tensor

    @classmethod
    def of(cls, known: Known) -> Classes:
        x, y = flat(known.rows.x, known.device), known.rows.y.to(known.device)
        whole, count = x.mean(0), known.case.job.task.classes
        if known.labels is None or not count:
            return cls(whole[None], x - whole)
        means = torch.stack([x[y == label].mean(0) if bool((y == label).any()) else whole for label in range(count)])
        return cls(torch.cat([means, whole[None]]), x - means[y])

    def expected(self, labels: Tensor | None, rows: int) -> Tensor:
        """The mean input of each row's class, or of its classes where it has shares of several."""
        if labels is None or len(self.means) == 1:
            return self.means[-1].expand(rows, -1)
        if labels.is_floating_point():
            return labels.to(self.means).reshape(rows, -1) @ self.means[:-1]
        return self.means[labels]


@dataclass(frozen=True)
class Prior:
    """A normal distribution around 0 of what inputs differ by, as coordinates that are independent with deviation 1."""

    axes: Tensor
    """Directions in which rows differ, with their deviations."""
    loose: float

    @classmethod
    def of(cls, rows: Tensor) -> Prior:
        _, sizes, axes = torch.linalg.svd(rows.double(), full_matrices=False)
        rank = min(_RANK, len(sizes))
        deviations = sizes[:rank] / max(1, len(rows) - 1) ** 0.5
        variance = float(deviations.square().sum()) / rows.shape[1]
        scaled = (1 - _LOOSE) ** 0.5 * deviations[:, None] * axes[:rank]
        return cls(scaled.to(rows.dtype), max(_LOOSE * variance, 1e-12) ** 0.5)

    def inputs(self, coordinates: Tensor) -> Tensor:
        along, anywhere = coordinates[:, : len(self.axes)], coordinates[:, len(self.axes) :]
        return along @ self.axes + self.loose * anywhere

    def coordinates(self, inputs: Tensor) -> Tensor:
        """The most probable coordinates of some inputs."""
        x, axes, loose = inputs.double(), self.axes.double(), self.loose**2
        variances = axes.square().sum(1)  # Axes are at right angles: the inverse of their covariance is had from these.
        across = (x - (x @ axes.T / (variances + loose)) @ axes) / loose
        return torch.cat([across @ axes.T, self.loose * across], 1).to(inputs)


@dataclass(frozen=True)
class _Smooth:
    """What neighbouring pixels that differ cost: as much as in the attacker's own pictures, one for each pixel."""

    shape: tuple[int, ...]
    weight: float

    @classmethod
    def of(cls, known: Known) -> _Smooth:
        x = known.rows.x.to(known.device)
        steps = _steps(x)
        return cls(known.shape, _SMOOTH * x[0].numel() / max(float(steps / len(x)), 1e-12))

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.weight * _steps(inputs.reshape(-1, *self.shape))


def _steps(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().sum() + (x[..., 1:] - x[..., :-1]).abs().sum()
