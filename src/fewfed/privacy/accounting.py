"""From releases to epsilon.

Releases with Gaussian noise and nothing else are one Gaussian mechanism, in closed form. Where rounds are hidden by
sampling, Google's dp-accounting composes both: by privacy loss distributions (PLD), and by Rényi divergences (RDP),
which are looser, beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fewfed.errors import ConfigError
from fewfed.privacy.gaussian import epsilon_of

Accountant = Literal["pld", "rdp"]

_WHOLE_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512)
"""Of Rényi divergences of sampled rounds: at others the series of the library may not converge."""


@dataclass(frozen=True)
class Sampled:
    """Rounds with noise on the whole, in each of which a client takes part with this chance, unseen."""

    rate: float
    noise: float
    """The noise multiplier where it does."""
    count: int


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
    library = _library()
    # One row is replaced by an empty one, as `fewfed.privacy.ledger` says.
    relation = library.NeighboringRelation.REPLACE_SPECIAL
    made = (
        library.pld.PLDAccountant(relation)
        if accountant == "pld"
        else library.rdp.RdpAccountant(list(_WHOLE_ORDERS) if rounds else None, neighboring_relation=relation)
    )
    for one in rounds:
        made.compose(library.PoissonSampledDpEvent(one.rate, library.GaussianDpEvent(one.noise)), one.count)
    if precision:
        made.compose(library.GaussianDpEvent(1 / math.sqrt(precision)))
    return float(made.get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp  # noqa: F401 - they become attributes of the package.
    except ImportError as error:
        raise ConfigError(
            "noise that the server adds once a round is accounted by dp-accounting, which is not installed: pip "
            "install 'fewfed[privacy]'"
        ) from error
    return dp_accounting
