"""One sum under masks: who takes part in it, in which phase of which run. All that is sent in it is bound to it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from fewfed.deploy.secure.wire import Reader, Writer, odd
from fewfed.deploy.security.envelope import About
from fewfed.errors import ConfigError

LEAST_SITES = 3
"""Of two sites, each learns the other's value from the sum."""
MOST_SITES = 100
"""Every site deals a share to every other one: beyond this the time that takes is felt."""
_VERSION = 1


def majority(sites: int) -> int:
    """The smallest number that is more than half."""
    return sites // 2 + 1


@dataclass(frozen=True)
class Session:
    """What all sites of a sum, and the server, agree on."""

    run: str
    round: int
    phase: str
    attempt: int
    sites: tuple[str, ...]
    """By name, in order. Whoever drops out later still belongs to the session."""
    threshold: int
    """So many sites must answer to the end, and so many can put another's secrets together."""
    layout: bytes
    """The digest of the vector's layout."""

    @classmethod
    def new(
        cls,
        run: str,
        round: int,
        phase: str,
        attempt: int,
        sites: Collection[str],
        layout: bytes,
        threshold: int | None = None,
    ) -> Session:
        """`threshold`: by default a majority. `ConfigError` where there are too few sites, or too low a threshold."""
        names = tuple(sorted(sites))
        needed = majority(len(names)) if threshold is None else threshold
        session = cls(run, round, phase, attempt, names, needed, layout)
        if session.problem:
            raise ConfigError(session.problem)
        return session

    @property
    def problem(self) -> str:
        """Why no site should take part in it; empty if nothing is wrong."""
        count = len(self.sites)
        if not LEAST_SITES <= count <= MOST_SITES:
            return (
                f"{count} sites are to be summed under masks: expected {LEAST_SITES} to {MOST_SITES}, because of fewer "
                "each site would learn another's value from the sum"
            )
        if not count < 2 * self.threshold <= 2 * count:
            return (
                f"the threshold of the sum is {self.threshold} of {count} sites: expected {majority(count)} to "
                f"{count}, more than half, so that nobody can have a site's value unmasked"
            )
        return ""

    @property
    def digest(self) -> bytes:
        """Bound into every key, box and signature of the session."""
        return hashlib.sha256(b"fewfed secure session\x00" + self.encode()).digest()

    def is_of(self, about: About) -> bool:
        """Whether it belongs to the work that an envelope asks for: a site gives its value of no other."""
        mine = (self.run, self.round, self.phase, self.attempt)
        return mine == (about.run, about.round, about.phase, about.attempt)

    def number(self, name: str) -> int:
        """The place of a site among all, from 0: whose share is whose, and who of two adds a mask."""
        return self.sites.index(name)

    def encode(self) -> bytes:
        writer = Writer().number(_VERSION).text(self.run).number(self.round).text(self.phase).number(self.attempt)
        return writer.names(self.sites).number(self.threshold).raw(self.layout).done()

    @classmethod
    def decode(cls, content: bytes) -> Session:
        """Read an invitation, or raise `Refused`."""
        reader = Reader(content)
        if reader.number() != _VERSION:
            raise odd(f"it is of another version of secure aggregation: expected {_VERSION}; update the older side")
        found = cls(
            run=reader.text(),
            round=reader.number(),
            phase=reader.text(),
            attempt=reader.number(),
            sites=reader.names(),
            threshold=reader.number(),
            layout=reader.raw(hashlib.sha256().digest_size),
        )
        reader.end()
        return found
