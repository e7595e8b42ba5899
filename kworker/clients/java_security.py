"""Translates librdkafka's security properties into those of Kafka's Java clients."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kworker.errors import ConfigError

Value = str | int | float | bool

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# Without a counterpart in Java: without them a client would fail, or be less safe.
_FOREIGN = ("sasl.oauthbearer.", "sasl.kerberos.", "ssl.engine.", "ssl.providers", "ssl.crl.")
# librdkafka then looks for the authorities of the system, and Java takes its own.
_SYSTEMS_OWN = ("ssl.ca.location", "probe")
_OLD_KEY = re.compile(r"-BEGIN (RSA|EC|DSA) PRIVATE KEY-")


class Untranslatable(ConfigError):
    """Kafka's Java clients do not have what a property of librdkafka asks for."""


def security_properties(properties: Mapping[str, Value]) -> dict[str, str]:
    """Returns Java's properties for TLS and SASL; the values may hold secrets.

    PEM certificates and keys are given as text, so that only this host needs their files. Raises
    Untranslatable for a property that it cannot translate, and ConfigError for a file that it
    cannot read.
    """
    given = {name: _text(value) for name, value in properties.items()}
    protocol = given.get("security.protocol", "plaintext").upper()
    if protocol == "PLAINTEXT":
        return {}
    if foreign := [name for name in given if name.startswith(_FOREIGN)]:
        raise Untranslatable(
            f"kafka.{foreign[0]}: Kafka's Java clients, which Spark and"
            " kafka-transactions use, have no such property: use others for TLS and SASL"
        )
    sasl = _sasl(given) if protocol.startswith("SASL") else {}
    tls = dict(_tls(given)) if protocol.endswith("SSL") else {}
    return {"security.protocol": protocol, **sasl, **tls}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "GSSAPI"
    module = _MODULES.get(mechanism)
    if module is None:
        known = ", ".join(_MODULES)
        text = f"kworker can configure Kafka's Java clients for {known}, not for {mechanism}"
        raise Untranslatable(f"kafka.sasl.mechanism: {text}")
    user, password = (_quoted(given.get(f"sasl.{what}", "")) for what in ("username", "password"))
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    """Returns `text` as a quoted string of Java's login configuration, with line ends escaped."""
    for letter, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(letter, escaped)
    return f'"{text}"'


def _tls(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    named = dict(item for item in given.items() if item != _SYSTEMS_OWN)
    if trusted := _pem(named, "ssl.ca"):
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.certificates", trusted
    if certificate := _pem(given, "ssl.certificate"):
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.certificate.chain", certificate
        yield "ssl.keystore.key", _key(given)
    elif "ssl.keystore.location" in given:
        yield "ssl.keystore.type", "PKCS12"
        yield "ssl.keystore.location", given["ssl.keystore.location"]
        yield "ssl.keystore.password", given.get("ssl.keystore.password", "")
    if "ssl.key.password" in given:
        yield "ssl.key.password", given["ssl.key.password"]
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        yield "ssl.endpoint.identification.algorithm", ""  # so does Java spell it
    if given.get("enable.ssl.certificate.verification") == "false":
        raise Untranslatable(
            "kafka.enable.ssl.certificate.verification: Kafka's Java clients always verify"
            ' certificates: remove this key, and give "ssl.ca.location"'
        )


def _key(given: Mapping[str, str]) -> str:
    key = _pem(given, "ssl.key")
    if _OLD_KEY.search(key):
        name = "ssl.key.pem" if "ssl.key.pem" in given else "ssl.key.location"
        raise Untranslatable(
            f"kafka.{name}: Kafka's Java clients read a key in PKCS #8 only: convert it with"
            " openssl pkcs8 -topk8"
        )
    return key


def _pem(given: Mapping[str, str], name: str) -> str:
    """Returns the text of the property `<name>.pem`, or of the file that `<name>.location` names.

    Returns "" if neither property is given.
    """
    readers: dict[str, Callable[[str], str]] = {
        f"{name}.pem": str,
        f"{name}.location": lambda path: _read(f"{name}.location", path),
    }
    return next((read(given[key]) for key, read in readers.items() if key in given), "")


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"kafka.{name}: cannot read {path}: {reason}") from None
