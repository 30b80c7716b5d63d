"""Masks: long vectors of random numbers that only the holders of a short secret can make again.

Two sites agree on a secret by X25519, from keys made for this one phase. One adds the mask, the other takes it away, so
that it is gone from their sum. A mask is the key stream of AES-256 in counter mode; every number of it is uniform
modulo 2^64.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fewfed.deploy.secure.fixed_point import Vector
from fewfed.deploy.secure.wire import Writer, odd

KEY_BYTES = 32
_NUMBER_BYTES = 8
_PIECE = 1 << 16
"""Numbers masked at once: half a megabyte, which stays in the cache."""

Purpose = Literal["pair mask", "self mask", "box"]


class Agreement:
    """A key pair of one site for one phase."""

    def __init__(self, private: bytes | None = None) -> None:
        """`private`: an existing key; without one, a new key from the operating system's randomness."""
        self._key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)

    @property
    def private(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    def key_with(self, other: bytes, session: bytes, purpose: Purpose, names: tuple[str, str]) -> bytes:
        """A key that only the holder of the other key pair has too; `Refused` where that is no proper public key.

        `names`: both sites, in the order in which both say them.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:  # Also a point of small order, with which everybody would agree on the same secret.
            raise odd("its public key is none that can be used") from None
        return derived(shared, session, purpose, *names)


def derived(secret: bytes, session: bytes, purpose: Purpose, *names: str) -> bytes:
    """A key for one purpose in one session, from a secret: no two uses share a key."""
    info = Writer().text("fewfed secure").text(purpose)
    for name in names:
        info.text(name)
    return HKDF(hashes.SHA256(), KEY_BYTES, session, info.done()).derive(secret)


def add_mask(vector: Vector, key: bytes, sign: Literal[1, -1]) -> None:
    """Add the mask of a key to a vector, or take it away, modulo 2^64."""
    # A key makes one mask, so the counter may always begin at zero.
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(_PIECE * _NUMBER_BYTES)
    room = bytearray(len(zeros) + 16)
    numbers = np.frombuffer(room, "<u8", count=_PIECE)
    for start in range(0, len(vector), _PIECE):
        part = vector[start : start + _PIECE]
        stream.update_into(zeros[: len(part) * _NUMBER_BYTES] if len(part) < _PIECE else zeros, room)
        if sign == 1:
            np.add(part, numbers[: len(part)], out=part)
        else:
            np.subtract(part, numbers[: len(part)], out=part)


def to_bytes(vector: Vector) -> bytes:
    return vector.astype("<u8", copy=False).tobytes()


def from_bytes(content: bytes, length: int) -> Vector:
    """The vector that `to_bytes` wrote; `Refused` where the number of bytes is another."""
    if len(content) != length * _NUMBER_BYTES:
        raise odd(f"its vector has {len(content)} bytes: expected {length * _NUMBER_BYTES}")
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False)
