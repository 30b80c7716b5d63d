"""The attacker that puts together what the same sites sent in several rounds.

Noise that is new each time is smaller in the mean over rounds. Noise that stays is gone from what differs between
rounds, where the network that made them has changed. How much of either to look at is chosen on rows held out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.finding import Threat
from fewfed.privacy.attacks.pairs import Known, Pairs
from fewfed.privacy.attacks.products import Products, Rebuilt
from fewfed.privacy.attacks.rebuilders import LEARNS, ridge_of, seen
from fewfed.privacy.attacks.ridge import Ridge
from fewfed.privacy.attacks.series import Series, series_of

_APART = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)
"""Parts of all that is looked at which are differences between rounds; the rest is their mean."""
_USUAL, _LABELS = 0.1, (0.01, 1.0)
"""What labels weigh beside all that: first this, then others too."""
_SEARCHED = 1000
"""Pairs on which these are chosen, at most: for the penalty all are used."""
_MOST_SETS = 50
"""Sets of rounds for which it learns; rows of sites that were there in still others it takes from one round."""

SEES = (
    "the rows that sites sent, one by one and in their order, with the senders' names, and the model that was sent out "
    "in each of the recorded rounds"
)
NAMED = Threat("the server, from which names are not hidden", SEES, LEARNS)


@dataclass(frozen=True)
class ByRounds:
    """Ridge regression on the mean over rounds and on what differs between them, or on one round where that is better.

    It learns from clients that it plays itself through the same rounds: noise that stays does so for these too.
    """

    name: str = "rounds"
    what: str = "ridge regression on all recorded rounds together, or on one where that is better on rows held out"
    threat: Threat = NAMED
    has_pairs: bool = True

    def rebuild(self, known: Known, tell: Tell) -> Tensor | str:
        series = series_of(known, tell)
        if isinstance(series, str):
            return series
        alone = ridge_of(known.learn, known.held)
        found, least = alone(seen(known.victims, known.labels)), _error(alone, known.held)
        attacker, everybody = _Attacker(known, series), torch.arange(len(known.victims), device=known.device)
        single = attacker.rebuilt([len(series.rounds) - 1], everybody)
        if single.error < least:
            found, least = single.inputs.clone(), single.error
        sets = [(rounds, rows) for rounds, rows in series.sets() if len(rounds) > 1][:_MOST_SETS]
        for number, (rounds, rows) in enumerate(sets):
            tell(f"{len(rounds)} rounds together, {number + 1} of {len(sets)}")
            together = attacker.rebuilt(rounds, rows.to(known.device))
            if together.error < least:
                found[rows.to(known.device)] = together.inputs
        return found


class _Settings(NamedTuple):
    unit: bool
    apart: float
    labels: float


@dataclass(frozen=True)
class _Attacker:
    known: Known
    series: Series
    settings: dict[int, _Settings] = field(default_factory=dict)
    """By the number of rounds that are put together, for which they are chosen once."""

    def rebuilt(self, rounds: list[int], rows: Tensor) -> Rebuilt:
        """What some victims' rows are rebuilt to from these rounds, with the error on rows held out."""
        known, (learn, held) = self.known, self._sent(rounds)
        settings = self.settings.get(len(rounds)) or self.settings.setdefault(len(rounds), self._chosen(learn, held))
        asked = [torch.cat([own, self.series.victims[each][rows]]) for own, each in zip(held, rounds, strict=True)]
        columns = (
            _columns(known.learn),
            torch.cat([_columns(known.held), seen(known.victims[:, :0], known.labels)[rows]]),
        )
        products = Products.of(learn, asked, *columns, unit=settings.unit)
        found = products.fitted(settings.apart, settings.labels, known.learn.inputs, known.held.inputs)
        return found._replace(inputs=found.inputs[len(known.held) :].to(known.learn.inputs.dtype))

    def _sent(self, rounds: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        return [self.series.learn[each].sent for each in rounds], [self.series.held[each].sent for each in rounds]

    def _chosen(self, learn: list[Tensor], held: list[Tensor]) -> _Settings:
        """The settings that are best on rows held out."""
        known, some, tried = self.known, slice(0, _SEARCHED), dict[_Settings, float]()
        labels, inputs, goal = _columns(known.learn)[some], known.learn.inputs[some], known.held.inputs
        for unit in (False, True):
            products = Products.of([one[some] for one in learn], held, labels, _columns(known.held), unit=unit)
            usual = {
                _Settings(unit, apart, _USUAL): products.fitted(apart, _USUAL, inputs, goal).error
                for apart in (_APART if len(learn) > 1 else (0.0,))
            }
            best = min(usual, key=lambda each: usual[each])
            other = [best._replace(labels=weight) for weight in _LABELS]
            tried |= usual | {each: products.fitted(each.apart, each.labels, inputs, goal).error for each in other}
        return min(tried, key=lambda each: tried[each])


def _columns(pairs: Pairs) -> Tensor:
    """What labels say, as numbers."""
    return seen(pairs.sent[:, :0], pairs.labels)


def _error(model: Ridge, held: Pairs) -> float:
    return float((model(seen(held.sent, held.labels)).double() - held.inputs).square().mean())
