"""The pauses that operators have ordered, as the supervisor shows and logs them."""

from collections.abc import Mapping
from typing import Any, assert_never

import structlog

from kworker.config.model import Config
from kworker.core.pauses import NOTHING_PAUSED, Pause, PauseOrder, Resumption, named
from kworker.core.times import iso
from kworker.instance.pause_file import WatchedPauses

_LOG = structlog.get_logger()


class OperatorPauses:
    """Shows the pauses in force in the status, and logs when they begin and end.

    Owned by the supervisor. The workers read the file of pauses by themselves.
    """

    def __init__(self, watched: WatchedPauses) -> None:
        self._watched = watched
        self._topics = NOTHING_PAUSED
        self._known: Mapping[str, Pause] = {}

    def turn(self, now: float, *, force: bool = False) -> None:
        """Reads the file of pauses if it is time for that or `force`, and logs what has changed."""
        self._topics = self._watched.refresh(now, force=force)
        before, self._known = self._known, self._watched.in_force
        for topic, pause in self._known.items():
            if before.get(topic) != pause:
                _LOG.info(
                    f"paused {named(topic)}: no more records are taken, and those in hand finish",
                    by=pause.by,
                    since=iso(pause.since_ms),
                    until="kworker resume" if pause.until_ms is None else iso(pause.until_ms),
                )
        for topic in before.keys() - self._known.keys():
            why = _why_ended(self._watched.orders.get(topic))
            _LOG.info(f"resumed {named(topic)}: records are taken again", why=why)

    def is_complete(self, config: Config) -> bool:
        """Returns True if all topics that the workers read are paused, so that none is read."""
        return self._topics.cover([*config.source.topics, config.requeue_topic])

    def rows(self) -> list[dict[str, Any]]:
        """Returns the value of `paused` in `status --json`; a topic `*` stands for all."""
        return [
            {
                "topic": topic,
                "since_ms": pause.since_ms,
                "until_ms": pause.until_ms,
                "by": pause.by,
            }
            for topic, pause in sorted(self._known.items())
        ]


def _why_ended(order: PauseOrder | None) -> str:
    match order:
        case Resumption(by=by):
            return f"ordered by {by}"
        case Pause():
            return "the time of the pause is over"
        case None:
            return "the file with the pause was removed"
        case _:
            assert_never(order)
