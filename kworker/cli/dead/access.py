"""Access to Kafka for the commands on dead letters."""

import getpass
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from kworker.clients.admin import Admin
from kworker.clients.errors import KafkaRequestError
from kworker.clients.reader import TopicReader
from kworker.clients.transactions import KafkaTransactor
from kworker.config.client_properties import (
    admin_properties,
    producer_properties,
    record_sizes,
    transactional,
)
from kworker.config.model import Config
from kworker.config.topics import BYTES_MAX, TopicInfo, own_topics
from kworker.dead_letters.reader import DeadLetters
from kworker.dead_letters.repair import OtherTopic, Requeue
from kworker.dead_letters.resolutions import How
from kworker.dead_letters.resolver import Resolver, Signature
from kworker.errors import ConfigError, UsageError

TIMEOUT_S = 20.0
# The errors raised carry the part of the library's log that users need.
logging.getLogger("librdkafka").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Access:
    """The configuration, topics and dead letters that a command uses.

    `topics` has the topics as they were when the command began. `dead` reads only dead letters that
    existed then.
    """

    config: Config
    topics: Mapping[str, TopicInfo]
    dead: DeadLetters

    def bytes_max(self, topic: str) -> int:
        """Returns the size in bytes of the largest record that a topic accepts."""
        return int(self.topics[topic].config[BYTES_MAX])

    def requeue(self) -> Requeue:
        name = self.config.requeue_topic
        return Requeue(name, self.topics[name].partitions)


@contextmanager
def access(config: Config, to: str | None = None) -> Iterator[Access]:
    """Opens access to the dead letters and to the topics that a command uses.

    A command uses `to` instead of the requeue topic, if `to` is given.

    Raises Unreachable if no broker answers, ConfigError if a topic of the service does not exist,
    and UsageError if the topic `to` does not exist.
    """
    admin = Admin(admin_properties(config), timeout_s=TIMEOUT_S)
    dead, state, requeue = config.dead_letter.topic, config.dead_state_topic, config.requeue_topic
    own = (dead, state, requeue)
    topics = admin.topics({*own, to or requeue}, [BYTES_MAX])
    if missing := [name for name in own if name not in topics]:
        raise ConfigError(
            f"topics missing on the brokers: {', '.join(missing)}; create with: kworker topics"
            f" create --config {config.file}"
        )
    if to and to not in topics:
        raise UsageError(f"--to {to}: no such topic; create it, or correct the name")
    reader = TopicReader(admin_properties(config), config.name, timeout_s=TIMEOUT_S)
    with closing(reader):
        bounds_of = partial(_bounds, admin, topics)
        yield Access(config, topics, DeadLetters(reader, bounds_of, dead, state))


def _bounds(admin: Admin, topics: Mapping[str, TopicInfo], name: str) -> dict[int, range]:
    """Returns the offsets that each partition of a topic holds, up to its last stable offset."""
    partitions = [(name, number) for number in range(topics[name].partitions)]
    low = admin.list_offsets(partitions, "earliest")
    high = admin.list_offsets(partitions, "latest", committed=True)
    return {at[1]: range(low[at], high[at]) for at in partitions}


def target(found: Access, to: str | None) -> tuple[Requeue | OtherTopic, int | None]:
    """Returns the topic to which dead letters are written, and its limit for a record's size.

    The topic is `to`, or the requeue topic if `to` is None. The limit is in bytes; it is None if no
    dead letter can be too large. Raises UsageError if `to` is one of kworker's own topics, except
    the results topic.
    """
    config = found.config
    if to is None:
        limit = found.bytes_max(config.requeue_topic)
        # In requeue a record is no larger than its dead letter.
        fits = limit >= found.bytes_max(config.dead_letter.topic)
        return found.requeue(), None if fits else limit
    if to in own_topics(config) and to != config.delivery.results:
        raise UsageError(
            f"--to {to}: kworker writes this topic itself; name another topic; to run the"
            " records again, leave out --to"
        )
    return OtherTopic(to), found.bytes_max(to)


def resolver(found: Access, how: How, to: Requeue | OtherTopic | None) -> Resolver:
    """Makes the resolver, which writes records to `to` and resolutions to the state topic.

    A resolution marks a dead letter as resolved. Raises ConfigError if librdkafka refuses the
    properties of the producer.
    """
    config = found.config
    limits = [found.bytes_max(to.topic)] if to else []
    limits.append(found.bytes_max(config.dead_state_topic))
    properties = transactional(producer_properties(config, slot=0))
    own = {
        "client.id": f"{config.name}-{config.instance}-redrive",
        **record_sizes(properties, largest=max(limits), smallest=min(limits)),
    }
    name = f"{config.name}.redrive"
    try:
        transactor = KafkaTransactor({**properties, **own}, name, timeout_s=TIMEOUT_S)
    except KafkaRequestError as error:
        raise ConfigError(f"kafka: the producer cannot be created: {error}") from None
    state, dead = config.dead_state_topic, config.dead_letter.topic
    return Resolver(transactor, Signature(state, dead, how, whoami(), name))


def whoami() -> str:
    """Returns `user@host` of this process, which is recorded with each resolution."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
