"""What Kafka's clients raise when a request or a record is not taken."""


class KafkaRequestError(Exception):
    """Kafka did not take a request; the text says why. `retriable`: the same may work later."""

    def __init__(self, text: str, *, retriable: bool) -> None:
        super().__init__(text)
        self.retriable = retriable


class QueueFull(Exception):
    """The producer's buffer is full: poll, and try again."""


class Oversized(KafkaRequestError):
    """A record is larger than its producer takes, and alone at fault."""

    def __init__(self, text: str) -> None:
        super().__init__(text, retriable=False)
