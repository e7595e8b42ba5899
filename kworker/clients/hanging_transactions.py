"""Finds hanging transactions and aborts them with Kafka's own tool: Python's clients cannot."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kworker.clients.java_security import Untranslatable, security_properties
from kworker.config.client_properties import Properties
from kworker.errors import ConfigError, KworkerError, Unreachable
from kworker.host import descriptor_path, memory_file
from kworker.jars import KAFKA, KAFKA_LOGGING, KAFKA_TOOLS, fetch, find_java

OFFSETS = "__consumer_offsets"
_TOOL = "org.apache.kafka.tools.TransactionsCommand"
_TOOL_TIMEOUT_S = 120.0
_ASK_TIMEOUT_MS = 15_000
_NONE = "None"


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction in a partition.

    `producer` is the producer id. `hangs` is True if Kafka's tool reported that it hangs: no
    coordinator will ever end it.
    """

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
        """Returns every open transaction in a partition of `__consumer_offsets`.

        `hangs` is False in each: Kafka's answer does not tell which of them hang.
        """
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
        # Cells are padded with spaces and end with a tab; a transactional id may contain spaces.
        lines = [line.split("\t") for line in self._run(*arguments).splitlines() if line.strip()]
        return [[cell.strip() for cell in line] for line in lines[1:]]  # below the heading

    def _run(self, *arguments: str) -> str:
        lines = (f"{name}={_escaped(value)}\n" for name, value in self._settings.items())
        # Every user can see secrets on a command line.
        with memory_file("".join(lines)) as file:
            settings = ["--command-config", descriptor_path(file)]
            common = ["--bootstrap-server", self._servers, *settings]
            try:
                done = subprocess.run(
                    [*self._command, _TOOL, *common, *arguments],
                    pass_fds=[file],
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
    """Returns the properties for Kafka's command: security, and time-outs.

    Raises ConfigError for a security setting that Java's clients do not have.
    """
    timeout = {"default.api.timeout.ms": _ASK_TIMEOUT_MS, "request.timeout.ms": _ASK_TIMEOUT_MS}
    own = {"client.id": properties["client.id"]} if "client.id" in properties else {}
    try:
        security = security_properties(properties)
    except Untranslatable as error:
        raise ConfigError(
            f"{error}; so kworker cannot run Kafka's Java tool with your settings: run"
            " kafka-transactions.sh of a Kafka distribution, with your own file for"
            " --command-config"
        ) from None
    return {**{name: str(value) for name, value in (own | timeout).items()}, **security}


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
