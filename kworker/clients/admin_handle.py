"""The client for an administrator's requests, which is replaced when nobody answers it."""

import logging
from collections.abc import Mapping
from threading import Thread
from typing import Any

from confluent_kafka.admin import AdminClient

# After an election a client would ask with a leader epoch that is over, or say that there is no
# leader, for as long as it believes what it once heard: 15 minutes.
_FRESH = {"metadata.max.age.ms": 3000, "topic.metadata.refresh.interval.ms": 1000}


class AdminHandle:
    """Holds an `AdminClient`, and replaces it after the caller has set `stale`. Used by one thread.

    librdkafka sends most of these requests to the broker that it takes for the controller, and is
    connected to few others. While a client knows no topic, it does not ask again which broker is
    the controller. If the broker that it asks hangs, or once answered that there was no controller,
    then requests time out for as long as the client lives, although other brokers would answer. A
    new client finds the other brokers. So the caller sets `stale` when a request has timed out.
    """

    def __init__(self, properties: Mapping[str, Any], logger: logging.Logger) -> None:
        """Raises KafkaException if a property is wrong. `logger` gets the client's log lines."""
        self._properties = {**_FRESH, **properties}
        self._logger = logger
        self._client = self._connect()
        self.stale = False

    def client(self) -> AdminClient:
        """Returns the client for the next request: a new one if the last was stale.

        When a new client is made, unanswered requests of the last client fail.
        """
        if self.stale:
            self.read_log()
            old = [self._client]
            self._client = self._connect()
            self.stale = False
            # Its end may wait for a name server, so it takes place on another thread.
            Thread(target=old.clear, name="kworker-admin-end", daemon=True).start()
        return self._client

    def read_log(self) -> None:
        """Makes the client send its log lines to the logger; they tell why it reaches no broker."""
        self._client.poll(0)

    def _connect(self) -> AdminClient:
        return AdminClient(self._properties, logger=self._logger)
