"""The sandbox's Kafka: combined brokers and controllers, from Apache's own archives."""

import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kworker.errors import KworkerError
from kworker.jars import KAFKA, KAFKA_LOGGING, fetch, find_java
from kworker.sandbox.server import indented, size, tail

ANSWER_S = 2.0
FORMAT_TIMEOUT_S = 60.0
REPLICAS_MAX = 3


# A log entry at a level that ends a broker, with its continuation lines.
_ERROR = re.compile(r"^\d{4}-\S+ \S+ (?:ERROR|FATAL) .*\n(?:(?!\d{4}-).*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Cluster:
    """The settings that the brokers of one sandbox share.

    `identity` is Kafka's cluster id. `ports` has each broker's port for clients, and `controllers`
    the port that it uses as a controller. `say` is called with messages about the progress.
    """

    identity: str
    ports: list[int]
    controllers: list[int]
    heap: str
    properties: dict[str, str]
    say: Callable[[str], None]

    @cached_property
    def java(self) -> str:
        return str(find_java())

    @cached_property
    def classpath(self) -> str:
        """The brokers' class path: the folders of Kafka's jar files, downloaded if missing."""
        archives = [*fetch(KAFKA, progress=self.say), *fetch(KAFKA_LOGGING, progress=self.say)]
        # By folder, so that the brokers' command lines stay short in `ps`.
        folders = dict.fromkeys(archive.parent for archive in archives)
        return os.pathsep.join(f"{folder}/*" for folder in folders)

    def voters(self) -> str:
        numbered = enumerate(self.controllers, start=1)
        return ",".join(f"{node}@127.0.0.1:{port}" for node, port in numbered)

    def common(self) -> dict[str, object]:
        """Broker properties for development: short delays in rebalances, little memory."""
        replicas = min(REPLICAS_MAX, len(self.ports))
        in_sync = 2 if replicas == REPLICAS_MAX else 1
        return {
            "controller.quorum.voters": self.voters(),
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 8,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": 4,
            "num.partitions": 4,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 300,
            "group.min.session.timeout.ms": 1000,
            "group.consumer.min.session.timeout.ms": 1000,
            "group.consumer.min.heartbeat.interval.ms": 100,
            "group.consumer.heartbeat.interval.ms": 1000,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 2,
            # The default, 100 KiB, is little more than a segment of loopback: when it is full, the
            # sender probes for room after 0.2, 0.4, 0.8 … s. Minus one is the system's own size.
            "socket.receive.buffer.bytes": -1,
            "socket.send.buffer.bytes": -1,
            # The default, 128 MB, is half of a small heap.
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
            "log.index.size.max.bytes": 1024 * 1024,
        }


@dataclass
class Broker:
    """One broker of the sandbox, which is also a controller. Brokers are numbered from 1."""

    cluster: Cluster
    node: int
    folder: Path
    port_option: str = "--kafka-port"
    name: str = field(init=False)
    port: int = field(init=False)
    log: Path = field(init=False)
    _log_start: int = 0  # where the log of this start begins

    def __post_init__(self) -> None:
        self.name = f"broker-{self.node}"
        self.port = self.cluster.ports[self.node - 1]
        self.log = self.folder / "broker.log"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{name}={value}\n" for name, value in self._properties().items())
        (self.folder / "server.properties").write_text("".join(lines))
        (self.folder / "log4j2.xml").write_text(_LOGGING.replace("LOG", str(self.log)))
        if not (self.folder / "data" / "meta.properties").exists():
            self._format()
        self._log_start = size(self.log)

    def command(self) -> list[str]:
        heap = f"-Xmx{self.cluster.heap}"
        errors = f"-XX:ErrorFile={self.folder}/jvm-error.log"
        # The serial collector: several brokers share few cores and little memory.
        machine = [heap, "-Xms32m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", errors]
        return self._java(machine, "kafka.Kafka", str(self.folder / "server.properties"))

    def last_output(self) -> str:
        """The errors that broker and JVM wrote since the start; without any, the log's end."""
        log = tail(self.log, self._log_start)
        errors = "".join(_ERROR.findall(log)) + tail(self.folder / "console.log")
        return indented(errors or log)

    def answers(self) -> bool:
        """True if the broker answers, and lists itself among the cluster's live brokers.

        Once this holds for every broker, the controller knows all of them.
        """
        return self.node in known_brokers(self.port)

    def _properties(self) -> dict[str, object]:
        controller = self.cluster.controllers[self.node - 1]
        return {
            "process.roles": "broker,controller",
            "node.id": self.node,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            **self.cluster.common(),
            **self.cluster.properties,
        }

    def _format(self) -> None:
        configuration = str(self.folder / "server.properties")
        arguments = ["format", "-t", self.cluster.identity, "-c", configuration]
        machine = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = self._java(machine, "kafka.tools.StorageTool", *arguments)
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=FORMAT_TIMEOUT_S,
                check=True,
            )
        except subprocess.SubprocessError as error:
            said = indented(str(getattr(error, "output", None) or error))
            raise KworkerError(f"{self.name} does not start; its last output:{said}") from error

    def _java(self, machine: list[str], *rest: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder}/log4j2.xml"
        return [self.cluster.java, *machine, logging, "-cp", self.cluster.classpath, *rest]


_METADATA = struct.pack(">hhih", 3, 5, 1, -1) + struct.pack(">i?", 0, False)


def known_brokers(port: int) -> set[int]:
    """Returns the ids of the brokers that the broker at `port` knows; empty without an answer.

    The Metadata request (version 5, no topics) is built by hand: this check needs no Kafka library.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as link:
            link.sendall(struct.pack(">i", len(_METADATA)) + _METADATA)
            stream = link.makefile("rb")
            (size,) = struct.unpack(">i", stream.read(4))
            return set(_nodes(stream.read(size)))
    except (OSError, struct.error):
        return set()


def _nodes(answer: bytes) -> Iterator[int]:
    # Correlation, throttle time, then brokers: number, host, port, rack.
    (count,) = struct.unpack_from(">i", answer, 8)
    at = 12
    for _ in range(count):
        node, host_bytes = struct.unpack_from(">ih", answer, at)
        at += 6 + host_bytes + 4
        (rack_bytes,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(0, rack_bytes)
        yield node


_LOGGING = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR" shutdownHook="disable">
  <Appenders>
    <RollingFile name="file" fileName="LOG" filePattern="LOG.%i">
      <PatternLayout pattern="%d %p %m (%c{1})%n"/>
      <SizeBasedTriggeringPolicy size="16 MB"/>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="INFO"><AppenderRef ref="file"/></Root>
  </Loggers>
</Configuration>
"""
