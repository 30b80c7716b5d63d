"""Certificates for TLS: a private authority, and the server certificate that it signs.

Only the server has a certificate. Sites check it against the authority's; who a site is, is shown by its keys.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fewfed.errors import ConfigError, RunError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
"""Some programs trust no certificate that is valid for longer."""
_MOST_DAYS = 36_500
_BEFORE = timedelta(days=1)
"""Certificates begin to be valid a day ago: clocks differ."""
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_LONGEST_HOST = 253

Host = str | ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Certificate:
    """A certificate and what it says."""

    content: x509.Certificate

    @classmethod
    def parsed(cls, pem: bytes, where: str) -> Certificate:
        try:
            return cls(x509.load_pem_x509_certificate(pem))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise RunError(f"'{where}' holds no certificate: expected a PEM file as 'fewfed certs' makes it") from error

    @property
    def pem(self) -> bytes:
        return self.content.public_bytes(serialization.Encoding.PEM)

    @property
    def expires(self) -> datetime:
        return self.content.not_valid_after_utc

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and addresses that it is for."""
        try:
            names = self.content.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return ()
        addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
        return (*names.get_values_for_type(x509.DNSName), *addresses)

    @property
    def fingerprint(self) -> str:
        return self.content.fingerprint(hashes.SHA256()).hex(":").upper()

    def is_of(self, key: ec.EllipticCurvePrivateKey) -> bool:
        """Whether the key is the one that belongs to it."""
        return self.content.public_key() == key.public_key()

    def is_signed_by(self, authority: Certificate) -> bool:
        try:
            self.content.verify_directly_issued_by(authority.content)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


@dataclass(frozen=True)
class Authority:
    """A certificate that signs others, with its private key."""

    certificate: Certificate
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, days: int = AUTHORITY_DAYS) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fewfed federation authority")])
        usage = x509.KeyUsage(
            digital_signature=False, key_encipherment=False, content_commitment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        built = (
            _begun(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(Certificate(built.sign(key, hashes.SHA256())), key)

    @classmethod
    def parsed(cls, certificate: Certificate, key: ec.EllipticCurvePrivateKey) -> Authority:
        if not certificate.is_of(key):
            raise RunError("the authority's key is not that of its certificate: one of them is from another folder")
        return cls(certificate, key)

    @property
    def key_pem(self) -> bytes:
        return key_pem(self._key)

    def server(self, hosts: Sequence[Host], days: int = SERVER_DAYS) -> tuple[Certificate, bytes]:
        """A certificate for a server that is reached by these names and addresses, and its private key."""
        if not hosts:
            raise ConfigError("the server has no name: expected how sites reach it, as in --server fl.example.org")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(hosts[0])[:64])])
        names = [x509.DNSName(host) if isinstance(host, str) else x509.IPAddress(host) for host in hosts]
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True, key_encipherment=False, content_commitment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        built = (
            _begun(subject, self.certificate.content.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        )
        return Certificate(built.sign(self._key, hashes.SHA256())), key_pem(key)


def hosts(texts: Sequence[str]) -> tuple[Host, ...]:
    """Names and addresses of a server as a user writes them, without those that stand there twice."""
    return tuple(dict.fromkeys(_host(text.strip(" ")) for text in texts))


def check_days(days: int) -> int:
    """For how long a certificate is to be valid, or `ConfigError`."""
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError(f"days = {days}: expected 1 to {_MOST_DAYS}", key="days")
    return days


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def parsed_key(pem: bytes, where: str) -> ec.EllipticCurvePrivateKey:
    """The private key of a certificate."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunError(f"'{where}' holds no private key: expected a PEM file as 'fewfed certs' makes it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RunError(f"'{where}' holds a key of another kind: expected one as 'fewfed certs' makes it")
    return key


def _host(text: str) -> Host:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        pass
    if len(text) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in text.split(".")):
        raise ConfigError(
            f"the server name {text!r:.80} is neither a host name nor an address: expected fl.example.org or "
            "10.0.0.5, without a scheme, a port or a wildcard",
            key="server",
        )
    if re.fullmatch(r"[0-9.]+", text):
        raise ConfigError(f"the server address '{text}' is none: expected four numbers up to 255", key="server")
    return text.lower()


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
    )
