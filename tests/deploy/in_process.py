"""A transport without a network: sites are objects in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fewfed.deploy.parcel import Parcel, Unanswered

Answering = Callable[[Parcel], Parcel | None]


class InProcess:
    """Hands parcels to functions and keeps what they return."""

    def __init__(self, sites: Mapping[str, Answering]) -> None:
        self._sites = dict(sites)
        self._sessions = dict.fromkeys(sites, 0)
        self._answers: list[tuple[str, Parcel | Unanswered]] = []

    def present(self) -> Mapping[str, str]:
        return {name: str(session) for name, session in self._sessions.items() if name in self._sites}

    def send(self, parcels: Mapping[str, Parcel]) -> None:
        for name, parcel in parcels.items():
            answer = self._sites[name](parcel) if name in self._sites else None
            if answer is not None:
                self._answers.append((name, answer))

    def receive(self) -> Sequence[tuple[str, Parcel | Unanswered]]:
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        pass

    def restart(self, name: str, site: Answering) -> None:
        """Another object answers for a site from now on, as after a restart."""
        self._sites[name] = site
        self._sessions[name] = self._sessions.get(name, 0) + 1

    def leave(self, name: str) -> None:
        """A site is gone."""
        self._sites.pop(name, None)
