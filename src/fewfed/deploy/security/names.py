"""Names of sites. They become names of files and folders, stand in certificates, and are shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fewfed.errors import ConfigError

COORDINATOR = "coordinator"
"""The name under which the coordinator signs."""
LONGEST = 64

_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?", re.ASCII)
_RESERVED = frozenset({COORDINATOR, "server", "ca", "roster", "sites", "all", "none", "con", "nul", "prn", "aux"})


def problem_with(name: object) -> str:
    """What is wrong with the name of a site; empty if nothing is."""
    if not isinstance(name, str) or not name:
        return "it is empty"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, more than {LONGEST}"
    if not _PLAIN.fullmatch(name):
        return "it has other characters than letters, digits, '-', '_' and '.', or begins or ends with a dot"
    if ".." in name:
        return "it has two dots in a row"
    if name.lower().partition(".")[0] in _RESERVED:
        return "it is reserved"
    return ""


def check_site(name: object) -> str:
    """The name, or `ConfigError`."""
    problem = problem_with(name)
    if problem:
        raise ConfigError(
            f"the site name {name!r:.80} cannot be used: {problem}; expected a plain name such as 'ward-3'"
        )
    return str(name)


def check_sites(names: Iterable[object]) -> tuple[str, ...]:
    """All the names, or `ConfigError`; two that differ only in case would be one folder on some machines."""
    found: dict[str, str] = {}
    for name in names:
        checked = check_site(name)
        other = found.get(checked.lower())
        if other is not None:
            what = (
                f"'{checked}' stands there twice" if other == checked else f"'{other}' and '{checked}' differ in case"
            )
            raise ConfigError(f"of the site names, {what}: expected names that differ")
        found[checked.lower()] = checked
    return tuple(found.values())
