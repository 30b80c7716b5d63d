"""What is in a folder of keys, when it expires, and what is wrong with it: `fewfed certs --check`."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fewfed.deploy.security.certificates import Certificate, parsed_key
from fewfed.deploy.security.key_folder import (
    CA_CERTIFICATE,
    CA_KEY,
    COORDINATOR_KEY,
    NODE_KEY,
    ROSTER,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SIGNING_KEY,
    SITES,
    KeyFolder,
    SiteKeys,
)
from fewfed.deploy.security.keys import read_bounded, read_signing_key
from fewfed.deploy.security.roster import Roster, read_roster
from fewfed.errors import FewfedError, RunError

SOON_DAYS = 30


@dataclass(frozen=True)
class Finding:
    """Something in the folder: what it is, and what is wrong with it."""

    what: str
    problem: str = ""


def check(path: Path) -> list[Finding]:
    """Everything in a coordinator's folder, or in a site's."""
    if not path.is_dir():
        raise RunError(f"'{path}' is no folder: expected one that 'fewfed certs' made")
    if (path / COORDINATOR_KEY).exists() or (path / CA_KEY).exists():
        return [*_coordinator(path)]
    if (path / SIGNING_KEY).exists():
        return [*_site(path)]
    raise RunError(
        f"'{path}' has neither a coordinator's keys nor a site's: expected a folder that 'fewfed certs' made"
    )


def _coordinator(path: Path) -> Iterator[Finding]:
    yield _looked_at("authority", lambda: _certificate(path, CA_CERTIFICATE, CA_KEY))
    yield _looked_at("server", lambda: _server(path))
    try:
        roster = KeyFolder(path).roster()
    except FewfedError as error:
        yield Finding("roster", str(error))
        return
    yield _looked_at("coordinator", lambda: _signing(path, roster))
    yield Finding(f"roster: {len(roster.sites)} sites")
    for name, member in roster.sites.items():
        folder = path / SITES / name
        if (folder / SIGNING_KEY).exists():
            yield _looked_at(f"site '{name}'", lambda folder=folder, name=name: _keys(folder, name))  # type: ignore[misc]
        else:
            yield Finding(f"site '{name}' {member.signing.fingerprint}: its private keys are not here, but at the site")
    yield from _open_to_others(path)


def _site(path: Path) -> Iterator[Finding]:
    yield _looked_at("authority", lambda: _certificate(path, CA_CERTIFICATE))
    yield _looked_at("keys", lambda: _keys(path, ""))
    try:
        roster = read_roster(path / ROSTER)
    except FewfedError as error:
        yield Finding("roster", str(error))
    else:
        yield Finding(f"roster: {len(roster.sites)} sites; coordinator {roster.coordinator.fingerprint}")
    yield from _open_to_others(path)


def _looked_at(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(f"{what}: {look()}")
    except FewfedError as error:
        return Finding(what, str(error))


def _certificate(path: Path, certificate: str, key: str = "") -> str:
    found = Certificate.parsed(read_bounded(path / certificate), str(path / certificate))
    if key and not found.is_of(parsed_key(read_bounded(path / key), str(path / key))):
        raise RunError(f"'{key}' is not the key of '{certificate}': one of them is from another folder")
    left = (found.expires - datetime.now(UTC)).days
    if left < 0:
        raise RunError(f"'{certificate}' expired on {found.expires:%Y-%m-%d}: make another one with --renew")
    soon = f", in {left} days: use --renew" if left <= SOON_DAYS else ""
    return f"valid until {found.expires:%Y-%m-%d}{soon}"


def _server(path: Path) -> str:
    valid = _certificate(path, SERVER_CERTIFICATE, SERVER_KEY)
    found, authority = (
        Certificate.parsed(read_bounded(path / name), name) for name in (SERVER_CERTIFICATE, CA_CERTIFICATE)
    )
    if not found.is_signed_by(authority):
        raise RunError(f"'{SERVER_CERTIFICATE}' is not signed by the authority in '{CA_CERTIFICATE}'")
    return f"{', '.join(found.hosts)}, {valid}"


def _signing(path: Path, roster: Roster) -> str:
    key = read_signing_key(path / COORDINATOR_KEY).public
    if key != roster.coordinator:
        raise RunError(f"'{COORDINATOR_KEY}' is not the coordinator's on the roster: one of them is from elsewhere")
    return key.fingerprint


def _keys(path: Path, name: str) -> str:
    keys = SiteKeys.read(path)
    if name and keys.name != name:
        raise RunError(f"the keys in '{path}' are those of '{keys.name}': expected those of '{name}'")
    return f"{'' if name else keys.name + ' '}{keys.signing.public.fingerprint}"


def _open_to_others(path: Path) -> Iterator[Finding]:
    private = {CA_KEY, SERVER_KEY, COORDINATOR_KEY, SIGNING_KEY, NODE_KEY}
    for file in sorted(path.rglob("*.key")):
        mode = stat.S_IMODE(file.lstat().st_mode)
        if file.name in private and mode & 0o077:
            name = file.relative_to(path)
            yield Finding(str(name), f"others may read it (mode {mode:o}): expected 600; run chmod 600 {file}")
