"""The back-offs of topics that give no answer while the brokers answer other clients."""

from kworker.core.restart import Backoff

NO_ANSWER = "no acknowledgement, though the brokers answer"

_LONGEST_S = 60.0
_CALM_S = 60.0  # a topic that was not silent for so long begins with the shortest back-off again


class SilentTopics:
    """The back-offs of topics that did not answer. Owned by `Refusals`.

    While one output has no answer, all other outputs of its batch or transaction wait, and so do
    all later ones, whatever their topics. So a topic that stays silent is tried ever more rarely.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._backoffs: dict[str, tuple[Backoff, float]] = {}  # by topic; with the end of the last

    def noted(self, topic: str, now: float) -> float:
        """Notes that a topic did not answer; returns the time until which it backs off."""
        new = Backoff(self._first_s, _LONGEST_S, _CALM_S), now
        backoff, until = self._backoffs.get(topic, new)
        until = now + backoff.failed(now - until)
        self._backoffs[topic] = backoff, until
        return until
