"""The roster: who takes part in a federation, with everybody's public keys. It is a TOML file that people can read.

The coordinator lets in nobody else. A site has a copy, so that it knows the coordinator's key, and, where values are
summed under masks, the keys of the other sites from somebody else than the coordinator at work.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewfed.deploy.security.keys import PublicKey, fingerprint, flower_line, public_key, read_bounded
from fewfed.deploy.security.names import COORDINATOR, check_site, check_sites
from fewfed.errors import ConfigError

MOST_SITES = 10_000
_MOST_BYTES = 1 << 24
_HEAD = """\
# The sites of a federation and their public keys, written by 'fewfed certs'. Nothing in it is secret, but whoever can
# change it decides who takes part: compare fingerprints with the sites by telephone.
"""


@dataclass(frozen=True)
class Member:
    """The public keys of one site."""

    name: str
    signing: PublicKey
    node: str
    """The key of its Flower node, as `flwr supernode register` takes it."""

    @classmethod
    def parsed(cls, name: object, entry: object) -> Member:
        """From a table of a TOML file; `ConfigError` where it is none."""
        checked = check_site(name)
        if not isinstance(entry, dict) or entry.keys() - {"fingerprint", "name"} != {"signing", "node"}:
            raise ConfigError(f"the entry of site '{checked}' is odd: expected the public keys 'signing' and 'node'")
        member = cls(checked, public_key(entry["signing"]), flower_line(entry["node"]))
        if entry.get("fingerprint", member.signing.fingerprint) != member.signing.fingerprint:
            raise ConfigError(
                f"the fingerprint of site '{checked}' does not fit its signing key: one of them was changed; "
                "ask the site for its fingerprint"
            )
        return member

    def lines(self) -> list[str]:
        """As it is written to a TOML file."""
        return [
            f"fingerprint = {json.dumps(self.signing.fingerprint)}",
            f"signing = {json.dumps(self.signing.line)}",
            f"node = {json.dumps(self.node)}",
        ]


@dataclass(frozen=True)
class Roster:
    """Everybody who takes part."""

    coordinator: PublicKey
    sites: Mapping[str, Member]

    def __post_init__(self) -> None:
        check_sites(self.sites)
        if len(self.sites) > MOST_SITES:
            raise ConfigError(f"the roster has {len(self.sites)} sites: expected at most {MOST_SITES}")
        owners: dict[str, str] = {self.coordinator.fingerprint: COORDINATOR}
        for member in self.sites.values():
            for mark in (member.signing.fingerprint, fingerprint(member.node)):
                other = owners.setdefault(mark, member.name)
                if other != member.name:
                    raise ConfigError(f"'{other}' and '{member.name}' have the same key {mark}: expected one for each")

    @property
    def keys(self) -> dict[str, PublicKey]:
        """The signing keys of all sites, by name: who may send replies."""
        return {name: member.signing for name, member in self.sites.items()}

    @property
    def coordinator_keys(self) -> dict[str, PublicKey]:
        """Who may send requests."""
        return {COORDINATOR: self.coordinator}

    def with_site(self, member: Member) -> Roster:
        return replace(self, sites={**self.sites, member.name: member})

    def without(self, name: str) -> Roster:
        if name not in self.sites:
            known = ", ".join(self.sites) or "nobody"
            raise ConfigError(f"site '{name}' is not on the roster: expected one of {known}")
        return replace(self, sites={other: member for other, member in self.sites.items() if other != name})

    def named(self, public: PublicKey) -> str:
        """Whose signing key it is; empty if nobody's."""
        return next((member.name for member in self.sites.values() if member.signing == public), "")

    def written(self) -> bytes:
        """The content of its file."""
        lines = [_HEAD, f"coordinator = {json.dumps(self.coordinator.line)}"]
        for member in self.sites.values():
            lines += ["", f"[sites.{json.dumps(member.name)}]", *member.lines()]
        return ("\n".join(lines) + "\n").encode()


def read_roster(path: Path) -> Roster:
    """The roster in a file; `ConfigError` where it is none, `RunError` where it cannot be read."""
    return parsed_roster(read_bounded(path, _MOST_BYTES), str(path))


def parsed_roster(content: bytes, where: str) -> Roster:
    """The roster in the content of a file; `where` it is from."""
    found = toml(content, where)
    try:
        if found.keys() - {"sites"} != {"coordinator"} or not isinstance(found.get("sites", {}), dict):
            raise ConfigError("expected the key 'coordinator' and tables [sites.NAME]")
        sites = {name: Member.parsed(name, entry) for name, entry in found.get("sites", {}).items()}
        return Roster(public_key(found["coordinator"]), sites)
    except ConfigError as error:
        raise error.at(where) from error


def toml(content: bytes, where: str) -> dict[str, Any]:
    """A TOML file, or `ConfigError`."""
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: it is no TOML file ({error!s:.200}): expected one as 'fewfed certs' writes it"
        ) from error
