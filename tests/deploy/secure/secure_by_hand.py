"""The server's part once more, from the description and with Python's own numbers: every mask is made, and taken away.

Nothing of `fewfed.deploy.secure` is used: X25519 after RFC 7748, HKDF after RFC 5869, shares in GF(2^128), AES one
block at a time.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Mapping

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PRIME = 2**255 - 19
FIELD = (1 << 128) | 0b10000111


def x25519(private: bytes, public: bytes) -> bytes:
    scalar = (int.from_bytes(private, "little") & ~7 & ((1 << 255) - 1)) | (1 << 254)
    u = int.from_bytes(public, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for bit in reversed(range(255)):
        one = scalar >> bit & 1
        if swap ^ one:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = one
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % PRIME, b * b % PRIME, d * a % PRIME, c * b % PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def times(a: int, b: int) -> int:
    """In GF(2^128)."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 128:
            a ^= FIELD
        b >>= 1
    return product


def inverse(a: int) -> int:
    result, power = 1, a
    for _ in range(127):  # a^(2^128 - 2)
        power = times(power, power)
        result = times(result, power)
    return result


def secret_of(shares: list[bytes]) -> bytes:
    """Lagrange's polynomial at zero, of each block of 16 bytes."""
    points = [struct.unpack("<I", share[:4])[0] for share in shares]
    blocks = []
    for start in range(4, 52, 16):
        total = 0
        for x, share in zip(points, shares, strict=True):
            factor = 1
            for other in points:
                if other != x:
                    factor = times(factor, times(other, inverse(other ^ x)))
            total ^= times(int.from_bytes(share[start : start + 16], "big"), factor)
        blocks.append(total.to_bytes(16, "big"))
    padded = b"".join(blocks)
    assert padded[32:] == bytes([16]) * 16
    return padded[:32]


def key_of(secret: bytes, session: bytes, *words: str) -> bytes:
    info = b"".join(struct.pack("<I", len(word)) + word.encode() for word in ("fewfed secure", *words))
    extracted = hmac.digest(session, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def mask_of(key: bytes, count: int) -> list[int]:
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = b"".join(block.update(number.to_bytes(16, "big")) for number in range((count + 1) // 2))
    return list(struct.unpack(f"<{count}Q", stream[: 8 * count]))


def named(content: bytes, start: int) -> tuple[int, int]:
    """A list's length, and where its first entry begins."""
    (count,) = struct.unpack_from("<Q", content, start)
    return count, start + 8


def entries(content: bytes, start: int, size: int) -> Iterator[tuple[str, bytes]]:
    count, at = named(content, start)
    for _ in range(count):
        (length,) = struct.unpack_from("<I", content, at)
        name = content[at + 4 : at + 4 + length].decode()
        at += 4 + length
        yield name, content[at : at + size]
        at += size
    assert at == len(content) or size == 0


def total_by_hand(
    invitation: bytes,
    keys: Mapping[str, bytes],
    dealers: list[str],
    masked: Mapping[str, bytes],
    revealed: Mapping[str, bytes],
    threshold: int,
    numbers: int,
) -> list[int]:
    """The sum of the survivors' vectors without masks, modulo 2^64, from the bytes that the server received."""
    session = hashlib.sha256(b"fewfed secure session\x00" + invitation).digest()
    total = [0] * numbers
    for content in masked.values():
        assert content[40:48] == bytes(8)  # It misses no box.
        vector = struct.unpack_from(f"<{numbers}Q", content, 64)
        total = [a + b for a, b in zip(total, vector, strict=True)]
    shares: dict[str, list[bytes]] = {}
    for content in revealed.values():
        for name, entry in entries(content, 40, 60):
            assert entry[:8] == struct.pack("<Q", 1 if name in masked else 2)
            shares.setdefault(name, []).append(entry[8:])
    for dealer in dealers:
        secret = secret_of(shares[dealer][-threshold:])
        if dealer in masked:
            taken = [mask_of(key_of(secret, session, "self mask", dealer), numbers)]
            total = [a - b for a, b in zip(total, taken[0], strict=True)]
            continue
        for name in masked:
            pair = sorted((dealer, name))
            shared = x25519(secret, keys[name][72:104])
            mask = mask_of(key_of(shared, session, "pair mask", *pair), numbers)
            sign = 1 if name == pair[0] else -1
            total = [a - sign * b for a, b in zip(total, mask, strict=True)]
    return [each % 2**64 for each in total]
