"""A session in one process, with sites that drop out where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fewfed.deploy.secure.layout import Layout, Limits, Rest, outline_of
from fewfed.deploy.secure.messages import Kind
from fewfed.deploy.secure.reveals import Reveals
from fewfed.deploy.secure.server import SecureServer
from fewfed.deploy.secure.session import Session
from fewfed.deploy.secure.site import SecureSite
from fewfed.deploy.security.envelope import About, Direction, new_nonce
from fewfed.deploy.security.keys import SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.phase import Combine, Role, Upload
from fewfed.tree import Tree

UPLOADS: Mapping[str, Upload] = {
    "model": Upload(Combine.MEAN, Role.MODEL),
    "change": Upload(Combine.SUM, Role.CONTROL),
}
KEYS = {f"site-{number}": SigningKey.new() for number in range(8)}
PUBLIC = {name: key.public for name, key in KEYS.items()}

Value = tuple[float, Tree]
Change = Callable[[str, bytes], bytes]


def about_of(session: Session, site: str) -> About:
    """What the envelope of an honest coordinator says of itself."""
    run, round, phase, attempt = session.run, session.round, session.phase, session.attempt
    return About(run, round, phase, "secure", attempt, Direction.REQUEST, COORDINATOR, site, new_nonce())


@dataclass
class Play:
    """A session at work: the server, its sites, and everything that was sent."""

    values: Mapping[str, Value]
    uploads: Mapping[str, Upload] = field(default_factory=lambda: UPLOADS)
    limits: Limits = field(default_factory=Limits)
    threshold: int | None = None
    attempt: int = 0
    rest: Rest = "refuse"
    reveals: Mapping[str, Reveals] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = next(iter(self.values.values()))[1]
        self.layout = Layout.of(self.uploads, outline_of(first), len(self.values), self.limits, self.rest)
        self.session = Session.new("run-1", 2, "train", self.attempt, self.values, self.layout.digest, self.threshold)
        self.server = SecureServer(self.session, self.layout, PUBLIC)
        self.sites: dict[str, SecureSite] = {}
        self.sent: dict[Kind, dict[str, bytes]] = {}
        self.received: dict[Kind, dict[str, bytes]] = {}

    def answer(self, name: str, request: bytes) -> bytes:
        """What an honest site answers at this step."""
        if self.server.step is Kind.KEYS:
            reveals = self.reveals.get(name, Reveals())
            self.sites[name] = SecureSite(request, about_of(self.session, name), name, KEYS[name], PUBLIC, reveals)
            return self.sites[name].keys()
        if self.server.step is Kind.MASKED:
            self.sites[name].put(self.layout, *self.values[name], self.extras.get(name, b""))
        return self.sites[name].answer(request)

    def step(self, gone: frozenset[str] = frozenset(), change: Change = lambda _name, content: content) -> None:
        """One step, in which some do not answer; `change` alters what a site answers."""
        step, requests = self.server.step, self.server.requests()
        self.sent[step], self.received[step] = requests, {}
        for name, request in requests.items():
            if name not in gone:
                self.received[step][name] = change(name, self.answer(name, request))
                self.server.take(name, self.received[step][name])
        self.server.close_step()

    def until(self, step: Kind, gone: Mapping[Kind, frozenset[str]] | None = None) -> Play:
        """All steps before this one."""
        while self.server.step is not step:
            self.step((gone or {}).get(self.server.step, frozenset()))
        return self

    def to_the_end(self, gone: Mapping[Kind, frozenset[str]] | None = None) -> Play:
        """All steps; who has dropped out stays away."""
        while not self.server.is_done:
            self.step((gone or {}).get(self.server.step, frozenset()))
        return self
