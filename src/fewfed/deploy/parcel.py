"""What a transport carries: a sealed letter, and beside it something large that several letters may share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Parcel:
    """One message. The letter is signed and names the digest of what is attached, so that both are as they were sent.

    A broadcast is attached, not inside the letter: it is the same for all sites, and travels to the hub once.
    """

    letter: bytes
    attached: bytes = b""

    def __len__(self) -> int:
        return len(self.letter) + len(self.attached)


@dataclass(frozen=True)
class Unanswered:
    """What comes in place of an answer where something at a site could be reached, and the site could not."""

    reason: str


def digest_of(content: bytes) -> str:
    """What a letter says of the attachment; nothing where nothing is attached."""
    return hashlib.sha256(content).hexdigest() if content else ""
