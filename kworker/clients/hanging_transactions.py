"""Finds hanging transactions and aborts them with Kafka's own tool: Python's clients cannot."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kworker.config.client_properties import Properties
from kworker.errors import ConfigError, KworkerError, Unreachable
from kworker.jars import KAFKA, KAFKA_LOGGING, KAFKA_TOOLS, fetch, find_java

OFFSETS = "__consumer_offsets"
_TOOL = "org.apache.kafka.tools.TransactionsCommand"
_TOOL_TIMEOUT_S = 120.0
_ASK_TIMEOUT_MS = 15_000
_NONE = "None"

# Properties of the same name and kind in Java.
_SAME = ("security.protocol", "ssl.key.password", "ssl.cipher.suites", "client.id")
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# Security properties without a name in Java: without them the tool would fail, or be less safe.
_FOREIGN = ("sasl.oauthbearer.", "sasl.kerberos.", "ssl.engine", "ssl.providers", "ssl.keystore.")


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction in a partition; `hangs` is True if no coordinator will ever end it."""

    topic: str
    partition: int
    start_offset: int
    producer: int
    transactional_id: str  # "" when unknown
    hangs: bool

    @property
    def place(self) -> str:
        return f"{self.topic}:{self.partition}:{self.start_offset}"


class Tool:
    """Runs Kafka's command `kafka-transactions` for one cluster, in a Java process for each call.

    Raises `ConfigError` if Java 17 is missing, or if Kafka's command does not support the security
    settings. Raises `Unreachable` if the archives of the command cannot be downloaded, or if the
    brokers do not answer the command in time. Raises `KworkerError` with the command's output if
    the command fails.
    """

    def __init__(self, properties: Properties, say: Callable[[str], None]) -> None:
        self._servers = str(properties["bootstrap.servers"])
        self._settings = java_properties(properties)
        java = str(find_java())
        archives = [
            *fetch(KAFKA_TOOLS, progress=say, alone=True),
            *fetch(KAFKA, progress=say),
            *fetch(KAFKA_LOGGING, progress=say),
        ]
        folders = dict.fromkeys(archive.parent for archive in archives)
        classpath = os.pathsep.join(f"{folder}/*" for folder in folders)
        self._command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]

    def hanging(self, broker: int, older_min: int) -> list[Transaction]:
        """Returns the hanging transactions on a broker: those that no coordinator knows.

        Leaves out transactions that have been open for less than `older_min` minutes.
        """
        arguments = ["find-hanging", "--broker-id", str(broker)]
        rows = self._rows(*arguments, "--max-transaction-timeout", str(older_min))
        names = self._names if rows else {}
        return [
            Transaction(topic, int(number), int(start), int(who), names.get(int(who), ""), True)
            for topic, number, who, _, _, start, *_ in rows
        ]

    def open_in(self, partition: int) -> list[Transaction]:
        """Returns every open transaction in a partition of `__consumer_offsets`, hanging or not."""
        rows = self._rows("describe-producers", "--topic", OFFSETS, "--partition", str(partition))
        begun = [(int(row[0]), int(row[5])) for row in rows if row[5] != _NONE]
        names = self._names if begun else {}
        return [
            Transaction(OFFSETS, partition, start, producer, names.get(producer, ""), False)
            for producer, start in begun
        ]

    def abort(self, transaction: Transaction) -> None:
        """Aborts a transaction by writing the marker that its coordinator never wrote."""
        place = ["--topic", transaction.topic, "--partition", str(transaction.partition)]
        self._run("abort", *place, "--start-offset", str(transaction.start_offset))

    @cached_property
    def _names(self) -> dict[int, str]:
        """The transactional ids that the coordinators know, by producer id."""
        return {int(row[2]): row[0] for row in self._rows("list")}

    def _rows(self, *arguments: str) -> list[list[str]]:
        lines = [line.split() for line in self._run(*arguments).splitlines() if line.strip()]
        return lines[1:]  # below the heading

    def _run(self, *arguments: str) -> str:
        # A file that only this user can read: every user can see secrets on a command line.
        with tempfile.NamedTemporaryFile("w", prefix="kworker-", suffix=".properties") as file:
            file.writelines(f"{name}={_escaped(value)}\n" for name, value in self._settings.items())
            file.flush()
            common = ["--bootstrap-server", self._servers, "--command-config", file.name]
            try:
                done = subprocess.run(
                    [*self._command, _TOOL, *common, *arguments],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_TOOL_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Unreachable(
                    f"kafka-transactions got no answer from {self._servers}"
                    f" within {_TOOL_TIMEOUT_S:g} s"
                ) from None
        if done.returncode:
            output = "".join(f"\n  {line}" for line in _last_lines(done.stderr + done.stdout))
            raise KworkerError(f"kafka-transactions {arguments[0]} failed:{output}")
        return done.stdout


def offsets_partition(group: str, count: int) -> int:
    """Returns the partition of `__consumer_offsets` that holds a group's positions."""
    code = 0
    for unit in memoryview(group.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    # Java's hash of a string is signed; Kafka takes its absolute value.
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % count


def java_properties(properties: Properties) -> dict[str, str]:
    """Translates librdkafka's security settings into those of Kafka's Java clients.

    Raises ConfigError for a setting that Java's clients do not have.
    """
    settings = {name: str(value) for name, value in properties.items()}
    foreign = [name for name in settings if name.startswith(_FOREIGN)]
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        foreign.append("enable.ssl.certificate.verification")
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or ""
    secured = settings.get("security.protocol", "plaintext").upper()
    if secured.startswith("SASL") and mechanism not in _MODULES:
        foreign.append(f"sasl.mechanism = {mechanism or 'GSSAPI'}")
    if foreign:
        raise ConfigError(
            f"kafka.{foreign[0]} cannot be passed to Kafka's command kafka-transactions: run"
            " kafka-transactions.sh of a Kafka distribution yourself, with your own file for"
            " --command-config"
        )
    found = {name: settings[name] for name in _SAME if name in settings}
    found["security.protocol"] = secured
    found["default.api.timeout.ms"] = found["request.timeout.ms"] = str(_ASK_TIMEOUT_MS)
    if secured.startswith("SASL"):
        found |= _sasl(settings, mechanism)
    if secured.endswith("SSL"):
        found |= dict(_ssl(settings))
    return found


def _sasl(settings: dict[str, str], mechanism: str) -> dict[str, str]:
    user, password = (
        settings.get(f"sasl.{what}", "").replace("\\", "\\\\").replace('"', '\\"')
        for what in ("username", "password")
    )
    login = f'{_MODULES[mechanism]} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _ssl(settings: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields Java's TLS properties; certificates and keys stay PEM, which Java accepts as well."""
    if "ssl.ca.pem" in settings or "ssl.ca.location" in settings:
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.certificates", _pem(settings, "ssl.ca")
    if "ssl.certificate.pem" in settings or "ssl.certificate.location" in settings:
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.certificate.chain", _pem(settings, "ssl.certificate")
        yield "ssl.keystore.key", _pem(settings, "ssl.key")
    check = settings.get("ssl.endpoint.identification.algorithm", "https")
    yield "ssl.endpoint.identification.algorithm", "" if check == "none" else check


def _pem(settings: dict[str, str], prefix: str) -> str:
    if f"{prefix}.pem" in settings:
        return settings[f"{prefix}.pem"]
    path = settings.get(f"{prefix}.location", "")
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kafka.{prefix}.location: {path} cannot be read ({error})") from None


def _escaped(value: str) -> str:
    """Escapes a value for a Java properties file, whose encoding is Latin-1."""
    return "".join(map(_escape, value)).replace(" ", "\\ ")


def _escape(letter: str) -> str:
    if letter in "\\#!=:":
        return f"\\{letter}"
    if 0x20 <= ord(letter) < 0x7F:
        return letter
    units = memoryview(letter.encode("utf-16-le")).cast("H")
    return "".join(f"\\u{unit:04x}" for unit in units)


def _last_lines(output: str) -> Sequence[str]:
    lines = [line.strip() for line in output.splitlines()]
    own = [line for line in lines if line and not line.startswith(("at ", "SLF4J", "Picked up"))]
    return own[-5:]
