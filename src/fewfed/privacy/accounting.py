"""From releases to epsilon.

Releases with Gaussian noise and nothing else are one Gaussian mechanism, in closed form. Where rounds are hidden by
sampling, Google's dp-accounting composes both: by privacy loss distributions (PLD), and by Rényi divergences (RDP),
which are looser, beside them.

Where each client is drawn by itself (Poisson sampling), a row can be told from an empty one in one direction, the same
in all rounds: what is seen with it is a mixture, what is seen without it is not. Where cohorts have a fixed size,
somebody else is there in its place, and both are mixtures: which of the two is more like one may differ from round to
round, and depend on the rounds before. A bound for whatever comes must hold for both in each round, and is larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fewfed.errors import ConfigError
from fewfed.privacy.gaussian import epsilon_of

Accountant = Literal["pld", "rdp"]

_WHOLE_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512)
"""Of Rényi divergences of sampled rounds: at others the series of the library may not converge."""


_STEP = 1e-4
"""Of the grid of privacy losses; rounded so that epsilon can only come out larger."""
_MOST_COHORTS = 10**9
"""Of which a rate is a fraction."""


@dataclass(frozen=True)
class Sampled:
    """Rounds with noise on the whole, in each of which a client takes part with this chance, unseen."""

    rate: float
    noise: float
    """The noise multiplier where it does."""
    count: int
    fixed: bool = True
    """Whether cohorts have a fixed size; else each client is drawn by itself."""


@dataclass(frozen=True)
class Spent:
    """All that a client has released, as far as it tells about one row."""

    precision: float = 0.0
    """Of all that went out with Gaussian noise and in plain sight, added up: infinite where something had none."""
    sampled: tuple[Sampled, ...] = ()

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """The privacy loss for a delta."""
        rounds = tuple(one for one in self.sampled if one.rate and one.count)
        if math.isinf(self.precision) or any(one.noise == 0 for one in rounds):
            return math.inf
        if not rounds and accountant == "pld":
            return epsilon_of(self.precision, delta)
        return _composed(self.precision, rounds, delta, accountant)


@lru_cache(maxsize=4096)
def _composed(precision: float, rounds: tuple[Sampled, ...], delta: float, accountant: Accountant) -> float:
    together = _by_losses if accountant == "pld" else _by_divergences
    return float(together(_library(), precision, rounds, delta))


def _by_losses(library: Any, precision: float, rounds: tuple[Sampled, ...], delta: float) -> Any:
    of = library.pld.privacy_loss_distribution
    parts = [(_fixed(one.rate, one.noise) if one.fixed else _alone(one)).self_compose(one.count) for one in rounds]
    if precision:
        parts.append(of.from_gaussian_mechanism(1 / math.sqrt(precision), value_discretization_interval=_STEP))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return whole.get_epsilon_for_delta(delta)


def _alone(one: Sampled) -> Any:
    """Losses of a round in which each client is drawn by itself, in either direction."""
    of = _library().pld.privacy_loss_distribution
    return of.from_gaussian_mechanism(one.noise, sampling_prob=one.rate, value_discretization_interval=_STEP)


@lru_cache(maxsize=256)
def _fixed(rate: float, noise: float) -> Any:
    """Losses of a round with a cohort of fixed size: at each epsilon, below 0 too, the larger delta of both directions.
    The larger of two such curves is one again, of the pair of distributions that stands for both."""
    pld = _library().pld
    kind, direction = pld.privacy_loss_mechanism.GaussianPrivacyLoss, pld.privacy_loss_mechanism.AdjacencyType
    both = [kind(noise, sampling_prob=rate, adjacency_type=way) for way in (direction.REMOVE, direction.ADD)]
    most = max(way.connect_dots_bounds().epsilon_upper for way in both)
    steps = np.arange(-math.ceil(most / _STEP), math.ceil(most / _STEP) + 1)
    deltas = np.maximum(*(way.get_delta_for_epsilon(steps * _STEP) for way in both))
    made = pld.pld_pmf.create_pmf_pessimistic_connect_dots(_STEP, steps, deltas)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(made)


def _by_divergences(library: Any, precision: float, rounds: tuple[Sampled, ...], delta: float) -> Any:
    # One row is replaced by an empty one, as `fewfed.privacy.ledger` says; the library has a bound for cohorts of a
    # fixed size where it may be replaced by any other, which is more.
    fixed = any(one.fixed for one in rounds)
    relation = library.NeighboringRelation.REPLACE_ONE if fixed else library.NeighboringRelation.REPLACE_SPECIAL
    made = library.rdp.RdpAccountant(list(_WHOLE_ORDERS) if rounds else None, neighboring_relation=relation)
    for one in rounds:
        made.compose(_event(library, one), one.count)
    if precision:
        made.compose(library.GaussianDpEvent(1 / math.sqrt(precision)))
    return made.get_epsilon(delta)


def _event(library: Any, one: Sampled) -> Any:
    if not one.fixed:
        return library.PoissonSampledDpEvent(one.rate, library.GaussianDpEvent(one.noise))
    part = Fraction(one.rate).limit_denominator(_MOST_COHORTS)
    noise = library.GaussianDpEvent(one.noise)
    return library.SampledWithoutReplacementDpEvent(part.denominator, part.numerator, noise)


def _library() -> Any:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp  # noqa: F401 - they become attributes of the package.
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "noise that the server adds once a round is accounted by dp-accounting, which is not installed: pip "
            "install 'fewfed[privacy]'"
        ) from error
    return dp_accounting
