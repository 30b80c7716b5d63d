"""Which attacks have something to work on, from what phases declare: roles and combinations, never names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from fewfed.engine.job import is_inside
from fewfed.phase import Phase, Role, Upload

_ROWS = frozenset({Role.FEATURES, Role.INPUTS})
_WEIGHTS = frozenset({Role.MODEL, Role.UPDATE})
_CLASSES = frozenset({Role.LABELS, Role.PROTOTYPES, Role.COUNTS, Role.STATISTICS, Role.GENERATOR, *_WEIGHTS})


def _rows(uploads: Mapping[str, Upload]) -> str:
    found = [name for name, each in uploads.items() if each.rows and each.role in _ROWS]
    return f"{_listed(found)}: rows that are read one by one" if found else ""


def _trained(uploads: Mapping[str, Upload]) -> str:
    found = [name for name, each in uploads.items() if each.role in _WEIGHTS]
    return f"{_listed(found)}: a model that was fitted to the sites' rows" if found else ""


def _steps(uploads: Mapping[str, Upload]) -> str:
    found = [name for name, each in uploads.items() if each.role in _WEIGHTS]
    return f"{_listed(found)}: what training changed, as far as one site's can be read by itself" if found else ""


def _classes(uploads: Mapping[str, Upload]) -> str:
    found = [name for name, each in uploads.items() if each.role in _CLASSES]
    return f"{_listed(found)}: differs by the classes that a site has" if found else ""


def _either(*rules: Callable[[Mapping[str, Upload]], str]) -> Callable[[Mapping[str, Upload]], str]:
    return lambda uploads: "; ".join(filter(None, (rule(uploads) for rule in rules)))


_RULES: Mapping[str, Callable[[Mapping[str, Upload]], str]] = MappingProxyType(
    {
        "reconstruct": _rows,
        "context": _rows,
        "property": _rows,
        "membership": _either(_trained, _rows),
        "gradient": _steps,
        "labels": _classes,
        "inversion": _trained,
        "information": _rows,
    }
)


ATTACKS = tuple(_RULES)
"""Their names, in the order they are run."""


def applicable(phases: Iterable[Phase]) -> dict[str, str]:
    """The attacks of this project that apply to some phases, each with what it works on."""
    uploads = {
        f"'{name}' of phase '{phase.name}'": each
        for phase in phases
        if not is_inside(phase)
        for name, each in phase.uploads.items()
    }
    found = {attack: rule(uploads) for attack, rule in _RULES.items()}
    return {attack: reason for attack, reason in found.items() if reason}


def _listed(names: list[str]) -> str:
    return ", ".join(names)
