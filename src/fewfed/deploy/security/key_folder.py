"""The folder of keys that `fewfed certs` makes, and the smaller one that each site is given.

    ca.crt ca.key             the authority for TLS
    server.crt server.key     the server's certificate, signed by it
    coordinator.key           signs what the coordinator sends
    roster.toml               names and public keys of all sites, and the coordinator's public key
    sites/NAME/               what site NAME must be given, and nobody else: signing.key, node.key, ca.crt, roster.toml

All files are for their owner alone. Nothing private is ever overwritten unless that is asked for. A site may also make
its keys itself and hand over their public part, so that its private keys never leave it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fewfed.deploy.security.certificates import (
    SERVER_DAYS,
    Authority,
    Certificate,
    Host,
    check_days,
    hosts,
    parsed_key,
)
from fewfed.deploy.security.keys import (
    FlowerKey,
    SigningKey,
    fingerprint,
    read_bounded,
    read_flower_key,
    read_signing_key,
)
from fewfed.deploy.security.names import check_site, check_sites
from fewfed.deploy.security.roster import Member, Roster, read_roster, toml
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
COORDINATOR_KEY = "coordinator.key"
ROSTER = "roster.toml"
SITES = "sites"
SIGNING_KEY, NODE_KEY = "signing.key", "node.key"


@dataclass(frozen=True)
class Wanted:
    """What a user asks of the folder."""

    server: tuple[Host, ...] = ()
    sites: tuple[str, ...] = ()
    """Sites whose keys are made here."""
    public: tuple[Path, ...] = ()
    """Public parts of keys that sites have made themselves."""
    removed: tuple[str, ...] = ()
    days: int = SERVER_DAYS
    renew: bool = False
    """Make a new server certificate in place of the one that is there."""
    replace: bool = False
    """Make new keys for the named sites in place of those that are there."""

    @classmethod
    def parsed(
        cls,
        server: Sequence[str],
        sites: Sequence[str],
        public: Sequence[Path] = (),
        removed: Sequence[str] = (),
        days: int = SERVER_DAYS,
        *,
        renew: bool = False,
        replace: bool = False,
    ) -> Wanted:
        """As it is written on a command line."""
        if replace and not sites and not public:
            raise ConfigError("--replace makes new keys for sites: expected --sites or --public with it", key="replace")
        chosen = hosts(server), check_sites(sites), tuple(public), check_sites(removed)
        return cls(*chosen, check_days(days), renew=renew, replace=replace)


class KeyFolder:
    """The coordinator's folder of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = OwnFolder(path)

    def update(self, wanted: Wanted) -> list[str]:
        """Make what is wanted and not there yet; what was done, in sentences. An error leaves what was there as it was:
        everything that can be wrong is looked at before anything is written."""
        roster = self._checked(wanted)
        before = roster
        _make(self.path)
        told = [*self._authority(), *self._server(wanted)]
        if roster is None:
            key = SigningKey.new()
            _refuse_there(self._folder, COORDINATOR_KEY)
            self._folder.write(COORDINATOR_KEY, key.written())
            roster = Roster(key.public, {})
            told.append(f"made the coordinator's signing key {key.public.fingerprint}")
            self._folder.write(ROSTER, roster.written())
        for name in wanted.removed:
            roster = roster.without(name)
            told.append(self._taken_out(name))
        for name in wanted.sites:
            member, said = self._site(name, wanted.replace)
            roster = roster.with_site(member)
            told += said
        for path in wanted.public:
            member = read_public(path)
            if roster.sites.get(member.name) != member:
                roster = roster.with_site(member)
                told.append(f"added site '{member.name}' with its own key {member.signing.fingerprint}")
        self._hand_out(roster)
        still = [name for name in before.sites if name in roster.sites] if before else []
        if still and roster != before:
            told.append(f"the roster is new: give {', '.join(still)} the new {SITES}/NAME/{ROSTER}")
        return told

    def coordinator_key(self) -> SigningKey:
        return read_signing_key(self.path / COORDINATOR_KEY)

    def roster(self) -> Roster:
        return read_roster(self.path / ROSTER)

    def site(self, name: str) -> Path:
        """The folder that a site is given."""
        return self.path / SITES / check_site(name)

    def _checked(self, wanted: Wanted) -> Roster | None:
        """The roster that is there, once everything wanted is known to be possible; None if there is none yet."""
        for certificate, key in ((CA_CERTIFICATE, CA_KEY), (SERVER_CERTIFICATE, SERVER_KEY), (ROSTER, COORDINATOR_KEY)):
            _refuse_half(self.path / certificate, self.path / key)
        roster = self.roster() if (self.path / ROSTER).exists() else None
        self._check_server(wanted, is_new=roster is None)
        self._check_sites(wanted, dict(roster.sites) if roster else {})
        return roster

    def _check_server(self, wanted: Wanted, *, is_new: bool) -> None:
        if is_new and not wanted.server:
            raise ConfigError(
                f"'{self.path}' has no keys yet, and the server has no name: expected how sites reach it, as in "
                "--server fl.example.org,10.0.0.5",
                key="server",
            )
        if not is_new and wanted.server and not wanted.renew:
            there = Certificate.parsed(read_bounded(self.path / SERVER_CERTIFICATE), SERVER_CERTIFICATE).hosts
            if set(there) != {str(host) for host in wanted.server}:
                raise ConfigError(
                    f"the server certificate in '{self.path}' is for {', '.join(there)}: expected the same names, or "
                    "--renew to make another one",
                    key="server",
                )

    def _check_sites(self, wanted: Wanted, known: dict[str, Member]) -> None:
        for name in wanted.removed:
            if name not in known:
                raise ConfigError(f"site '{name}' is not on the roster: expected one of {', '.join(known) or 'nobody'}")
            if name in wanted.sites:
                raise ConfigError(f"site '{name}' is to be removed and to be added: expected one of both")
            del known[name]
        for name in wanted.sites:
            if name in known and not wanted.replace:
                self._refuse_other_keys(known[name])
        for member in map(read_public, wanted.public):
            other = known.get(member.name)
            if member.name in wanted.sites or (other is not None and other != member and not wanted.replace):
                raise ConfigError(
                    f"site '{member.name}' has other keys already: expected a new name, or --replace if it has lost "
                    "them"
                )
            known[member.name] = member
        check_sites([*known, *(name for name in wanted.sites if name not in known)])

    def _refuse_other_keys(self, member: Member) -> None:
        """A site on the roster keeps its keys; those that are here must be them."""
        place = self.site(member.name) / SIGNING_KEY
        if not place.exists() or read_signing_key(place).public != member.signing:
            raise ConfigError(
                f"site '{member.name}' is on the roster with keys that are not in '{place.parent}', because it made "
                "them itself or they were moved: expected a new name, or --replace to make other keys for it"
            )

    def _authority(self) -> list[str]:
        if (self.path / CA_CERTIFICATE).exists():
            return []
        authority = Authority.new()
        _refuse_there(self._folder, CA_KEY)
        self._folder.write(CA_KEY, authority.key_pem)
        self._folder.write(CA_CERTIFICATE, authority.certificate.pem)
        return [f"made an authority, valid until {authority.certificate.expires:%Y-%m-%d}"]

    def _server(self, wanted: Wanted) -> list[str]:
        place = self.path / SERVER_CERTIFICATE
        if place.exists() and not wanted.renew:
            return []
        names = wanted.server
        if not names and place.exists():
            names = hosts(Certificate.parsed(read_bounded(place), str(place)).hosts)
        pem = read_bounded(self.path / CA_CERTIFICATE)
        key = parsed_key(read_bounded(self.path / CA_KEY), str(self.path / CA_KEY))
        authority = Authority.parsed(Certificate.parsed(pem, CA_CERTIFICATE), key)
        certificate, private = authority.server(names, wanted.days)
        self._folder.write(SERVER_KEY, private)
        self._folder.write(SERVER_CERTIFICATE, certificate.pem)
        return [
            f"made a server certificate for {', '.join(certificate.hosts)}, valid until {certificate.expires:%Y-%m-%d}"
        ]

    def _site(self, name: str, replace: bool) -> tuple[Member, list[str]]:
        """The public keys of a site whose keys are here, which are made where they are missing."""
        folder = self._site_folder(name)
        if folder.has(SIGNING_KEY) and folder.has(NODE_KEY) and not replace:
            signing, node = read_signing_key(folder.path / SIGNING_KEY), read_flower_key(folder.path / NODE_KEY)
            return Member(name, signing.public, node.line), []
        if not replace:
            _refuse_there(folder, NODE_KEY, SIGNING_KEY)
        signing, node = SigningKey.new(), FlowerKey.new()
        folder.write(NODE_KEY, node.written())
        folder.write(SIGNING_KEY, signing.written())
        member = Member(name, signing.public, node.line)
        return member, [f"made keys of site '{name}': {member.signing.fingerprint}; give it the folder {folder.path}"]

    def _taken_out(self, name: str) -> str:
        folder = self._site_folder(name)
        for file in (SIGNING_KEY, NODE_KEY, CA_CERTIFICATE, ROSTER):
            folder.remove(file)
        with contextlib.suppress(OSError):  # Somebody's own files may lie there.
            folder.path.rmdir()
        return f"took site '{name}' off the roster; restart the coordinator, which then lets it in no more"

    def _hand_out(self, roster: Roster) -> None:
        """Write the roster, and give every site what is the same for all."""
        self._folder.write(ROSTER, roster.written())
        authority = read_bounded(self.path / CA_CERTIFICATE)
        for name in roster.sites:
            folder = self._site_folder(name)
            folder.write(CA_CERTIFICATE, authority)
            folder.write(ROSTER, roster.written())

    def _site_folder(self, name: str) -> OwnFolder:
        above = self._folder.below(SITES)
        above.make()
        folder = above.below(check_site(name))
        folder.make()
        return folder


@dataclass(frozen=True)
class SiteKeys:
    """What a site's own folder holds."""

    name: str
    signing: SigningKey
    node: FlowerKey
    roster: Roster
    authority: Path
    """The certificate that the server's must be signed by."""

    @classmethod
    def read(cls, folder: Path) -> SiteKeys:
        """`RunError` or `ConfigError` where something is missing or does not fit."""
        signing, node = read_signing_key(folder / SIGNING_KEY), read_flower_key(folder / NODE_KEY)
        roster = read_roster(folder / ROSTER)
        Certificate.parsed(read_bounded(folder / CA_CERTIFICATE), str(folder / CA_CERTIFICATE))
        name = roster.named(signing.public)
        if not name:
            raise ConfigError(
                f"the signing key in '{folder}' ({signing.public.fingerprint}) is nobody's on its roster: expected the "
                "roster of the coordinator, with this site on it"
            )
        if roster.sites[name].node != node.line:
            raise ConfigError(
                f"the node key in '{folder}' ({fingerprint(node.line)}) is not the one that the roster has for "
                f"'{name}': expected {fingerprint(roster.sites[name].node)}"
            )
        return cls(name, signing, node, roster, folder / CA_CERTIFICATE)


def make_own_keys(path: Path, name: str) -> tuple[Path, str]:
    """Make a site's keys at the site; the file with their public part, to be handed over, and its fingerprint."""
    public = path / f"{check_site(name)}.public.toml"
    _make(path)
    folder = OwnFolder(path)
    _refuse_there(folder, SIGNING_KEY, NODE_KEY)
    member = Member(name, (signing := SigningKey.new()).public, (node := FlowerKey.new()).line)
    folder.write(NODE_KEY, node.written())
    folder.write(SIGNING_KEY, signing.written())
    folder.write(public.name, "\n".join([f'name = "{name}"', *member.lines(), ""]).encode())
    return public, member.signing.fingerprint


def read_public(path: Path) -> Member:
    """The public part of a site's keys."""
    entry = toml(read_bounded(path), str(path))
    try:
        return Member.parsed(entry.get("name"), entry)
    except ConfigError as error:
        raise error.at(str(path)) from error


def _make(path: Path) -> None:
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create the folder '{path}': {error.strerror}; choose another one") from error


def _refuse_there(folder: OwnFolder, *names: str) -> None:
    """Raise where one of these private files is there already."""
    for name in names:
        if folder.has(name):
            raise RunError(
                f"'{folder.path / name}' is there already and is not overwritten: expected no such file; move it away "
                "if it is not needed"
            )


def _refuse_half(certificate: Path, key: Path) -> None:
    if certificate.exists() != key.exists():
        there, missing = (certificate, key) if certificate.exists() else (key, certificate)
        raise RunError(
            f"'{there}' is there, but '{missing.name}' is not: expected both or none; put it back, or move the other "
            "one away to have both made anew"
        )
