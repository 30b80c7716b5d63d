"""The test of context of Xia et al., KDD 2024: how many examples it takes to see a mark in what is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.privacy.attacks import decoders, intervals, marker, ridge
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.pairs import flat, imitations, pairs_wanted
from fewfed.privacy.attacks.rebuilders import LEARNS, READS
from fewfed.privacy.attacks.reconstruct import why_no_rows
from fewfed.privacy.fitting import answers, fit
from fewfed.tasks.classification import Classification

_STEPS_ON_HOST, _STEPS_ON_GPU = 80, 800
_BATCH = 32
_LEAST, _MOST_SIZES = 10, 5
_LEAST_ROWS = 40
_FEW = 200
"""Rows that it may learn from however small the effort is: more cost little and say more."""
_CHANCE = 0.5

THREAT = Threat(
    "the server, or a site that the rows are handed to", READS, LEARNS + "; and examples of what it looks for"
)


@dataclass(frozen=True)
class Context:
    """Half of the attacker's rows get a mark; all are sent by the method's own code; a classifier tells them apart."""

    name: str = "context"
    title: str = "a mark on inputs recognised in what is sent, by the number of examples"

    def why_not(self, case: Case) -> str:
        if why := why_no_rows(case) or marker.why_unmarked(tuple(case.held.x.shape[1:])):
            return why
        if len(case.held) < _LEAST_ROWS:
            return f"it takes at least {_LEAST_ROWS} test rows, of which there are {len(case.held)}"
        return ""

    def findings(self, case: Case, tell: Tell) -> list[Finding]:
        return [one for exchanged in case.with_rows() for one in self._of(case, exchanged, tell)]

    def _of(self, case: Case, exchanged: Exchanged, tell: Tell) -> list[Finding]:
        tell(f"rows with and without a mark, round {exchanged.round}")
        shape, most = tuple(case.held.x.shape[1:]), max(_FEW, pairs_wanted(case))
        sent_shape, (sent, raw) = _marked(case, exchanged)
        variants: dict[str, tuple[str, Callable[[_Part, tuple[int, ...]], Tensor]]] = {
            "classifier": ("the classifier of Xia et al. 2024, without activations", _by_network),
            "ridge": ("ridge regression onto the two kinds", _by_ridge),
        }
        found = []
        for variant, (what, judge) in variants.items():
            measures = []
            for size in _sizes(min(len(sent.learn), len(raw.learn), most)):
                tell(f"{variant}, {size} rows")
                right, undefended = judge(sent.first(size), sent_shape), judge(raw.first(size), shape)
                low, high = intervals.of_share(int(right.sum()), len(right))
                words = f"mark recognised, learnt from {size} rows"
                share, without = float(right.double().mean()), float(undefended.double().mean())
                measures.append(Measure(words, share, low, high, len(right), _CHANCE, without))
            note = f"{what}; the mark: {marker.told(shape)}"
            if not measures:
                note = "not tried: an attacker's own rows gave too few rows to learn from"
            found.append(Finding(self.name, variant, THREAT, exchanged.round, exchanged.phase, tuple(measures), note))
        return found


@dataclass(frozen=True)
class _Part:
    """Flat rows of both kinds in turn, to learn from and to be tested on."""

    case: Case
    learn: Examples
    test: Examples

    def first(self, size: int) -> _Part:
        return _Part(self.case, self.learn.rows(torch.arange(size, device=self.learn.y.device)), self.test)


def _marked(case: Case, exchanged: Exchanged) -> tuple[tuple[int, ...], tuple[_Part, _Part]]:
    """What is sent of marked and unmarked rows, its shape, and these rows themselves."""
    own = case.held
    with_mark = marker.marked(own.x)
    after: list[Tensor] = []
    before: list[Tensor] = []
    shape: tuple[int, ...] = ()
    for number, numbers in enumerate(marker.halves(len(own), case.seed)):
        x = with_mark[numbers] if number % 2 else own.x[numbers]
        # Averages are of rows that all have the mark, or of rows that all have none.
        sent = imitations(case, exchanged, Examples(x, own.y[numbers]), len(x), seed=10 + number).sent
        shape = tuple(sent.shape[1:])
        after.append(flat(sent, case.device))
        before.append(flat(x, case.device))
    return shape, (_mixed(case, after), _mixed(case, before))


def _mixed(case: Case, parts: list[Tensor]) -> _Part:
    """From four parts, unmarked and marked, to learn from and to be tested on: as many of both kinds."""
    made = []
    for plain, with_mark in ((parts[0], parts[1]), (parts[2], parts[3])):
        count = min(len(plain), len(with_mark))
        x = torch.stack([plain[:count], with_mark[:count]], 1).flatten(0, 1)
        y = torch.tensor([0, 1], device=x.device).repeat(count)
        made.append(Examples(x, y))
    return _Part(case, made[0], made[1])


def _sizes(rows: int) -> list[int]:
    """Numbers of examples: as many of both kinds, evenly on a logarithmic scale from ten on."""
    if rows < _LEAST:
        return []
    steps = max(1, _MOST_SIZES - 1)
    exact = [_LEAST * (rows / _LEAST) ** (step / steps) for step in range(steps + 1)]
    return sorted({2 * round(size / 2) for size in exact if 2 * round(size / 2) <= rows})


def _by_ridge(part: _Part, shape: tuple[int, ...]) -> Tensor:  # noqa: ARG001
    target = 2.0 * part.learn.y[:, None].to(part.learn.x) - 1
    found = ridge.cross_chosen(part.learn.x, target, part.case.seed)(part.test.x)[:, 0]
    return (found > 0).long() == part.test.y


def _by_network(part: _Part, shape: tuple[int, ...]) -> Tensor:
    case, standard = part.case, ridge.Standard.of(part.learn.x)
    learn = Examples(standard(part.learn.x).float(), part.learn.y)
    net = decoders.network("context", lambda: classifier(shape), case.seed)
    steps = case.effort * (_STEPS_ON_GPU if case.device.type == "cuda" else _STEPS_ON_HOST)
    epochs = max(1, round(steps * min(_BATCH, len(learn)) / len(learn)))
    model = fit(net, learn, Classification(2), epochs=epochs, batch=_BATCH, lr=2e-3, seed=case.seed, device=case.device)
    return answers(net, model, standard(part.test.x).float()).argmax(1) == part.test.y


def classifier(shape: tuple[int, ...]) -> nn.Module:
    """The published classifier: three convolutions and a linear layer without activations; four linear layers where
    there are no places."""
    if not decoders.is_plane(shape):
        inputs = int(torch.Size(shape).numel())
        return nn.Sequential(nn.Linear(inputs, 32), nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(8, 2))
    channels, height, width = shape
    places = ((height + 1) // 2) * ((width + 1) // 2)
    return nn.Sequential(
        nn.Unflatten(1, shape),
        nn.Conv2d(channels, 32, 1),
        nn.Conv2d(32, 32, 3, 2, 1),
        nn.Conv2d(32, 8, 1),
        nn.Flatten(),
        nn.Linear(8 * places, 2),
    )
