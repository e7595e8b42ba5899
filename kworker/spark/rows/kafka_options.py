"""Translates `[kafka]`, which librdkafka reads, into properties of Spark's Java client."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kworker.errors import ConfigError

Value = str | int | float | bool

# Spelled alike and meaning the same on both sides.
_SAME = (
    "bootstrap.servers",
    "client.rack",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "socket.connection.setup.timeout.ms",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
)
_RENAMED = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def source_options(
    common: Mapping[str, Value], topic: str, starting: str = "earliest"
) -> dict[str, str]:
    """The options of Spark's Kafka source. A query without a checkpoint begins at `starting`.

    Reads certificate files. Raises ConfigError when a file cannot be read, or when the Spark job
    does not support the SASL mechanism. The options hold secrets, and must not get into a command
    line.
    """
    client = client_properties(common)
    return {
        "subscribe": topic,
        "startingOffsets": starting,
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        **{f"kafka.{name}": value for name, value in client.items()},
        "kafka.isolation.level": "read_committed",
    }


_EARLIEST = -2  # as Spark spells it


def starting_offsets(topic: str, start: Mapping[int, int], partitions: Iterable[int]) -> str:
    """Spark's JSON for `startingOffsets`; a partition not in `start` is read from its beginning."""
    return json.dumps({topic: {str(part): start.get(part, _EARLIEST) for part in partitions}})


def ending_offsets(topic: str, end: Mapping[int, int]) -> str:
    """Spark's option `endingOffsets`, in JSON, with the end of a batch in each partition."""
    return json.dumps({topic: {str(part): at for part, at in end.items()}})


def client_properties(common: Mapping[str, Value]) -> dict[str, str]:
    """Translates librdkafka's properties into those of Java's client.

    Leaves out the properties for which kworker knows no counterpart.
    """
    given = {_RENAMED.get(name, name): _text(value) for name, value in common.items()}
    same = {name: given[name] for name in _SAME if name in given}
    return {**same, **_security(given), **_tls(given)}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _security(given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    if "security.protocol" in given:
        found["security.protocol"] = given["security.protocol"].upper()
    if "sasl.mechanism" in given or "sasl.username" in given:
        mechanism = given.get("sasl.mechanism", "PLAIN").upper()
        found["sasl.mechanism"] = mechanism
        found["sasl.jaas.config"] = _jaas(mechanism, given)
    return found


def _jaas(mechanism: str, given: Mapping[str, str]) -> str:
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        known = ", ".join(_LOGIN_MODULES)
        raise ConfigError(f"kafka.sasl.mechanism: the Spark job supports {known}, not {mechanism}")
    user = _quoted(given.get("sasl.username", ""))
    password = _quoted(given.get("sasl.password", ""))
    return f"{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(given: Mapping[str, str]) -> dict[str, str]:
    """The TLS properties of Java's client: certificates and keys are PEM files or PEM texts."""
    found = {}
    if "ssl.ca.location" in given:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = given["ssl.ca.location"]
    elif "ssl.ca.pem" in given:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = given["ssl.ca.pem"]
    certificate = _pem(given, "ssl.certificate")
    if certificate:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = certificate
        found["ssl.keystore.key"] = _pem(given, "ssl.key")
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""  # so does Java spell it
    elif given.get("enable.ssl.certificate.verification") == "false":
        raise ConfigError(
            "kafka.enable.ssl.certificate.verification: Spark's Kafka client always verifies"
            ' certificates: remove this key, and give "ssl.ca.location"'
        )
    return found


def _pem(given: Mapping[str, str], name: str) -> str:
    """The PEM text in the property `<name>.pem`, or in the file that `<name>.location` names.

    "" if neither property is given.
    """
    readers: dict[str, Callable[[str], str]] = {
        f"{name}.pem": str,
        f"{name}.location": lambda path: _read(f"{name}.location", path),
    }
    for key, reader in readers.items():
        if key in given:
            return reader(given[key])
    return ""


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"kafka.{name}: cannot read {path}: {error.strerror}") from error
