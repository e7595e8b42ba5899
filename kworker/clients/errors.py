"""Errors of Kafka's clients: a request or a record was refused."""


class KafkaRequestError(Exception):
    """A request that Kafka refused, or did not answer; if `retriable`, it may work later."""

    def __init__(self, text: str, *, retriable: bool) -> None:
        super().__init__(text)
        self.retriable = retriable


class QueueFull(Exception):
    """The producer's buffer is full: poll, and try again."""


class Oversized(KafkaRequestError):
    """A record is larger than its producer's limit."""

    def __init__(self, text: str) -> None:
        super().__init__(text, retriable=False)


class Fenced(Exception):
    """Another process has taken this worker's identity (`group.instance.id`) in the group."""


class Abortable(KafkaRequestError):
    """The transaction cannot be committed; after `abort`, the producer can begin another."""


class Broken(Exception):
    """The open transaction takes no more records.

    Call `abort`: it ends the transaction, or raises an error that tells why it cannot.
    """
