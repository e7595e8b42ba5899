"""librdkafka's security in the names of Java's clients: the same, or a refusal; never less."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kworker.clients.java_security import Untranslatable, Value, security_properties
from kworker.errors import ConfigError

SCRAM: Mapping[str, Value] = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": "secret",
}
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
    ' username="ann" password="secret";',
}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
KEY = "-----BEGIN PRIVATE KEY-----\nK\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nC\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        # Without TLS and SASL librdkafka does not use them either.
        ({"sasl.username": "ann", "ssl.ca.location": "/nowhere", "linger.ms": 5}, {}),
        ({"security.protocol": "plaintext", "sasl.mechanism": "GSSAPI"}, {}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        (SCRAM, LOGIN),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "",
                "sasl.password": 7,
            },
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="" password="7";',
            },
        ),
        (
            {"security.protocol": "ssl", "ssl.ca.pem": CERTIFICATE, "ssl.ca.location": "/nowhere"},
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": CERTIFICATE,
            },
        ),
        # The system's own authorities are also what Java takes when nothing is named.
        ({**SCRAM, "ssl.ca.location": "probe"}, LOGIN),
        (
            {
                "security.protocol": "ssl",
                "ssl.certificate.pem": CERTIFICATE,
                "ssl.key.pem": KEY,
                "ssl.key.password": "secret",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": CERTIFICATE,
                "ssl.keystore.key": KEY,
                "ssl.key.password": "secret",
            },
        ),
        (
            {
                "security.protocol": "ssl",
                "ssl.keystore.location": "/etc/own.p12",
                "ssl.keystore.password": "secret",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/etc/own.p12",
                "ssl.keystore.password": "secret",
            },
        ),
        (
            {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"},
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "https"},
            {"security.protocol": "SSL"},
        ),
        (
            {"security.protocol": "ssl", "enable.ssl.certificate.verification": True},
            {"security.protocol": "SSL"},
        ),
    ],
)
def test_security_is_told_in_the_names_of_java(
    given: Mapping[str, Value], told: dict[str, str]
) -> None:
    assert security_properties(given) == told


@pytest.mark.parametrize(
    ("password", "quoted"),
    [
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("two\nlines\r", '"two\\nlines\\r"'),
        ("//no /* comment; and no end", '"//no /* comment; and no end"'),
        ("ü=#!", '"ü=#!"'),
    ],
)
def test_a_password_ends_where_it_ends(password: str, quoted: str) -> None:
    """A quote in it would begin another option of the login, and the end of a line end it."""
    told = security_properties({**SCRAM, "sasl.password": password})
    assert told["sasl.jaas.config"].endswith(f" password={quoted};")


def test_certificates_are_handed_over_as_text(tmp_path: Path) -> None:
    """Java wants certificate and key in one file; and executors elsewhere have no file of ours."""
    for name, text in {"ca": CERTIFICATE, "cert": CERTIFICATE, "key": KEY}.items():
        (tmp_path / name).write_text(text)
    told = security_properties(
        {
            "security.protocol": "ssl",
            "ssl.ca.location": f"{tmp_path}/ca",
            "ssl.certificate.location": f"{tmp_path}/cert",
            "ssl.key.location": f"{tmp_path}/key",
        }
    )
    assert (told["ssl.truststore.certificates"], told["ssl.keystore.key"]) == (CERTIFICATE, KEY)
    assert told["ssl.keystore.certificate.chain"] == CERTIFICATE


@pytest.mark.parametrize(
    ("foreign", "words"),
    [
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.mechanism: "),
        ({"security.protocol": "sasl_plaintext"}, "kafka.sasl.mechanism: .* not for GSSAPI"),
        ({**SCRAM, "sasl.kerberos.principal": "ann"}, "kafka.sasl.kerberos.principal: "),
        ({**SCRAM, "ssl.crl.location": "/revoked"}, "kafka.ssl.crl.location: "),
        (
            {
                "security.protocol": "ssl",
                "ssl.endpoint.identification.algorithm": "none",
                "enable.ssl.certificate.verification": False,
            },
            "kafka.enable.ssl.certificate.verification: .* always verify",
        ),
        (
            {
                "security.protocol": "ssl",
                "ssl.certificate.pem": CERTIFICATE,
                "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----\n",
            },
            "kafka.ssl.key.pem: .*: convert it with openssl pkcs8 -topk8",
        ),
    ],
)
def test_security_that_java_lacks_is_refused_with_its_key(
    foreign: Mapping[str, Value], words: str
) -> None:
    """A client would be refused late and at length, or be less safe than the service."""
    with pytest.raises(Untranslatable, match=f"^{words}"):
        security_properties(foreign)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_certificate_that_cannot_be_read_is_told_with_its_key(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "ca.pem"
    if content:
        path.write_bytes(content)
    words = rf"^kafka\.ssl\.ca\.location: cannot read {path}: (No such file|it is no text)"
    with pytest.raises(ConfigError, match=words):
        security_properties({"security.protocol": "ssl", "ssl.ca.location": str(path)})
