"""The interface between coordinator and sites: parcels go out, parcels come in. Flower is behind it, or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fewfed.deploy.parcel import Parcel, Unanswered


class Transport(Protocol):
    """The coordinator's end."""

    def present(self) -> Mapping[str, str]:
        """The sites that can be reached now, each with a mark of its session.

        Another mark says that the site, or something on the way to it, was started anew: what was sent before is lost.
        """

    def send(self, parcels: Mapping[str, Parcel]) -> None:
        """Send a parcel to each of some sites. Whether it arrives is known when an answer comes."""

    def receive(self) -> Sequence[tuple[str, Parcel | Unanswered]]:
        """The answers that came in since the last call, with the site each came from. It does not wait."""

    def close(self) -> None:
        """End connections and processes."""


class Delivery(Protocol):
    """A parcel that has come to a site."""

    @property
    def parcel(self) -> Parcel: ...

    def answer(self, parcel: Parcel) -> None:
        """Send the answer to it."""


class Line(Protocol):
    """A site's end."""

    def receive(self) -> Delivery | None:
        """The next parcel for this site, or None where there is none now. It does not wait."""

    def close(self) -> None:
        """End the connection."""
