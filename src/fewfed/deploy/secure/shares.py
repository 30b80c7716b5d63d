"""Secrets in shares: any `threshold` of the holders can put a secret together, and fewer learn nothing of it.

Splitting and joining is Flower's (Shamir's scheme over GF(2^128), with randomness of the operating system). What it
does not check is checked here: sizes, whose share it is, and, by digests that the dealer gives for every share, whether
it is the one that was dealt. A share travels in a box that only its holder can open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fewfed.deploy.secure.wire import Writer, odd
from fewfed.errors import ConfigError

SECRET_BYTES = 32
SHARE_BYTES = 4 + SECRET_BYTES + 16
"""Flower puts the holder's number before a share and pads the secret by a block."""
DIGEST_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
BOX_BYTES = _NONCE_BYTES + 2 * SHARE_BYTES + _TAG_BYTES


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """One share for each holder, in their order."""
    shares: list[bytes] = _shamir().create_shares(secret, threshold, holders)
    return shares


def join(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret of which these are shares, by the number of their holder from 0; None if they belong to none."""
    chosen = [shares[holder] for holder in sorted(shares)[:threshold]]
    if len(chosen) < threshold:
        return None
    try:
        secret: bytes = _shamir().combine_shares(chosen)
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


def check_share(share: bytes, holder: int) -> None:
    """Raise `Refused` unless it has the size of a share and the number of its holder, counted from 0."""
    if len(share) != SHARE_BYTES or int.from_bytes(share[:4], "little") != holder + 1:
        raise odd("a share in it is of another size, or another site's")


def digest_of(content: bytes) -> bytes:
    """What anybody may know of a share or a secret: enough to recognise it. Both are too random to be guessed."""
    return hashlib.sha256(b"fewfed secure share\x00" + content).digest()


def boxed(shares: tuple[bytes, bytes], key: bytes, session: bytes, dealer: str, holder: str) -> bytes:
    """Both shares that a dealer has for a holder, readable for the holder alone."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, b"".join(shares), _context(session, dealer, holder))


def unboxed(box: bytes, key: bytes, session: bytes, dealer: str, holder: str) -> tuple[bytes, bytes] | None:
    """What is in a box; None if it was not made for this holder in this session."""
    if len(box) != BOX_BYTES:
        return None
    try:
        content = AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], _context(session, dealer, holder))
    except InvalidTag:
        return None
    return content[:SHARE_BYTES], content[SHARE_BYTES:]


def _context(session: bytes, dealer: str, holder: str) -> bytes:
    return Writer().raw(session).text(dealer).text(holder).done()


def _shamir() -> Any:
    try:
        from flwr.common.secure_aggregation.crypto import shamir
    except ImportError as error:
        raise ConfigError(
            "secure aggregation needs the package 'flwr', which is not installed: run pip install 'fewfed[flower]'"
        ) from error
    return shamir
