"""Attacks by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fewfed.errors import ConfigError, did_you_mean
from fewfed.privacy.attacks.attack import Attack
from fewfed.privacy.attacks.context import Context
from fewfed.privacy.attacks.gradient import Gradient
from fewfed.privacy.attacks.information import Information
from fewfed.privacy.attacks.inversion import Inversion
from fewfed.privacy.attacks.labels import Labels
from fewfed.privacy.attacks.membership import Membership
from fewfed.privacy.attacks.property import Property
from fewfed.privacy.attacks.reconstruct import Reconstruct

_ALL: tuple[Attack, ...] = (
    Reconstruct(),
    Context(),
    Property(),
    Membership(),
    Gradient(),
    Labels(),
    Inversion(),
    Information(),
)


def attacks() -> Mapping[str, Attack]:
    """Every attack by its name, in the order they are run."""
    return MappingProxyType({each.name: each for each in _ALL})


def chosen(kinds: Sequence[str]) -> tuple[Attack, ...]:
    """The attacks of these names; all where none is named. Raises `ConfigError` for a name that is none."""
    known = attacks()
    for kind in kinds:
        if kind not in known:
            raise ConfigError(did_you_mean("attack", str(kind), tuple(known)), key="kinds", value=kind)
    return tuple(each for name, each in known.items() if not kinds or name in kinds)
