"""Signing keys: what they sign is known to come from their holder.

A site has two key pairs. With the first, Ed25519, it signs what it sends (`fewfed.deploy.security.envelope`): the same
content always gets the same signature, no signature needs a random number, and there is one form of each. With the
second, on a NIST curve, it shows Flower's SuperLink which node it is; Flower takes no other kind. They are not one key,
because a key that signs for two protocols lets messages of one be passed off as messages of the other.

Files are in OpenSSH's format, which Flower reads, and `ssh-keygen -lf FILE` shows the fingerprint that we show.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fewfed.errors import ConfigError, RunError

SIGNATURE_BYTES = 64
_MOST_FILE = 1 << 16
_UNREADABLE = (ValueError, TypeError, IndexError, NotImplementedError, UnsupportedAlgorithm)
"""What the library raises for keys that are damaged, of a kind it does not know, or written in a way it does not."""
_NIST = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


@dataclass(frozen=True)
class PublicKey:
    """What anybody may know of a signing key: enough to check its signatures."""

    content: bytes
    """The 32 bytes of an Ed25519 public key."""

    def signed(self, signature: bytes, content: bytes) -> bool:
        """Whether the holder of the private key has signed this content."""
        try:
            Ed25519PublicKey.from_public_bytes(self.content).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def line(self) -> str:
        """As OpenSSH writes it."""
        key = Ed25519PublicKey.from_public_bytes(self.content)
        return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.line)


@dataclass(frozen=True)
class SigningKey:
    """A private key. Its content is never shown."""

    _key: Ed25519PrivateKey

    @classmethod
    def new(cls) -> SigningKey:
        """From the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def public(self) -> PublicKey:
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return PublicKey(raw)

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content)

    def written(self) -> bytes:
        """The content of a private file."""
        return _private_file(self._key)

    def __repr__(self) -> str:
        return f"SigningKey({self.public.fingerprint})"


@dataclass(frozen=True)
class FlowerKey:
    """The key with which a node shows Flower who it is."""

    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> FlowerKey:
        return cls(ec.generate_private_key(ec.SECP384R1()))

    @property
    def line(self) -> str:
        """The public key as `flwr supernode register` takes it."""
        public = self._key.public_key()
        return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()

    @property
    def pair(self) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
        """As Flower's connection takes it."""
        return self._key, self._key.public_key()

    def written(self) -> bytes:
        """The content of a private file, as `flower-supernode --auth-supernode-private-key` takes it."""
        return _private_file(self._key)

    def __repr__(self) -> str:
        return f"FlowerKey({fingerprint(self.line)})"


def read_signing_key(path: Path) -> SigningKey:
    """The signing key in a private file; `RunError` where there is none."""
    key = _read_private(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise RunError(f"'{path}' holds a key of another kind: expected an Ed25519 key as 'fewfed certs' makes it")
    return SigningKey(key)


def read_flower_key(path: Path) -> FlowerKey:
    """The node's key in a private file; `RunError` where there is none."""
    key = _read_private(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, _NIST):
        raise RunError(f"'{path}' holds a key of another kind: expected one on a NIST curve, which Flower takes")
    return FlowerKey(key)


def public_key(line: object) -> PublicKey:
    """The signing key in a line of OpenSSH's; `ConfigError` where it is none."""
    key = _parsed_line(line)
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"the public key {line!r:.40} is of another kind: expected a line 'ssh-ed25519 ...'")
    return PublicKey(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))


def flower_line(line: object) -> str:
    """A node's public key in the one form that is compared; `ConfigError` where it is none."""
    key = _parsed_line(line)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _NIST):
        raise ConfigError(f"the node key {line!r:.40} is of another kind: expected a line 'ecdsa-sha2-nistp384 ...'")
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def fingerprint(line: str) -> str:
    """The fingerprint of a public key, as `ssh-keygen -l` shows it: people compare it over the telephone."""
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_bounded(path: Path, most: int = _MOST_FILE) -> bytes:
    """A small plain file; `RunError` where it is not there, no plain file, or longer than any key."""
    try:
        if not path.is_file():
            raise RunError(f"'{path}' is not there: expected a file that 'fewfed certs' made")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise RunError(f"'{path}' cannot be read ({error.strerror}): expected a file that is yours to read") from error
    if len(content) > most:
        raise RunError(f"'{path}' has more than {most} bytes: expected a key or a certificate")
    return content


def _read_private(path: Path) -> object:
    content = read_bounded(path)
    try:
        return serialization.load_ssh_private_key(content, None)
    except _UNREADABLE as error:
        raise RunError(
            f"'{path}' holds no private key that can be read: expected a file as 'fewfed certs' makes it; "
            "keys with a password are not supported"
        ) from error


def _parsed_line(line: object) -> object:
    if not isinstance(line, str) or len(line) > 2_000 or not line.isascii() or "\n" in line.strip():
        raise ConfigError(f"the public key {line!r:.40} is no line of OpenSSH's: expected 'KIND BASE64'")
    try:
        return serialization.load_ssh_public_key(line.strip().encode())
    except _UNREADABLE as error:
        raise ConfigError(
            f"the public key {line!r:.40} cannot be read: expected 'KIND BASE64', as OpenSSH writes it"
        ) from error


def _private_file(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
