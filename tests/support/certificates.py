"""Certificates of an authority that a test makes: for servers on loopback, and for clients."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LASTS = datetime.timedelta(days=2)
PLACES = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
USES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class Authority:
    """One that signs certificates, in a folder that keeps it: processes of a session share it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.pem"
        """The authority's own certificate, which those who trust it have."""
        secret = folder / f"{name}.key"
        self._name = _named(name)
        if not secret.exists():
            folder.mkdir(parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            secret.write_bytes(_pem(key))
            made = _unsigned(self._name, key).issuer_name(self._name)
            for extension in (
                x509.BasicConstraints(ca=True, path_length=0),
                _may(sign_certificates=True),
            ):
                made = made.add_extension(extension, critical=True)
            self.path.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
        loaded = load_pem_private_key(secret.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded
        self._own = x509.load_pem_x509_certificate(self.path.read_bytes())

    def issue(self, path: Path, password: str) -> Path:
        """A certificate with its key as PKCS #12, which OpenSSL and Java read; its path."""
        key = ec.generate_private_key(ec.SECP256R1())
        protected = BestAvailableEncryption(password.encode())
        both = pkcs12.serialize_key_and_certificates(
            b"own", key, self._signed(key), [self._own], protected
        )
        path.write_bytes(both)
        return path

    def issue_pem(self, path: Path) -> Path:
        """The same as one PEM file, without a password, as Python's servers read it."""
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(_pem(key) + self._signed(key).public_bytes(Encoding.PEM))
        return path

    def _signed(self, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        made = _unsigned(_named("somebody on loopback"), key).issuer_name(self._name)
        its_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (
            x509.BasicConstraints(ca=False, path_length=None),
            x509.SubjectAlternativeName(PLACES),
            x509.ExtendedKeyUsage(USES),
            its_key,
        ):
            made = made.add_extension(extension, critical=False)
        return made.sign(self._key, SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    its_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = made.add_extension(its_key, critical=False)
    return made.not_valid_before(now - LASTS).not_valid_after(now + LASTS)


def _may(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
