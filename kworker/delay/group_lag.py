"""The lag of the whole group, which the delay process of each instance requests."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace

import structlog

from kworker.clients.admin_connection import AdminRequestError
from kworker.clients.background_call import aside
from kworker.clients.group_view import GroupView, GroupWatcher
from kworker.config.client_properties import admin_properties, own_member
from kworker.config.model import Config
from kworker.config.topics import source_topics
from kworker.core.message import PartitionId
from kworker.errors import Unreachable
from kworker.instance.scoreboard import Text

_LOG = structlog.get_logger()
_ASK_EVERY_S = 2.0
_OLD_S = 10.0  # after which an answer is out of date

Rows = tuple[tuple[str, tuple[int, ...]], ...]


class GroupLagReader:
    """Reads the lag and the owner of each partition of the workers' consumer group.

    Owned by the delay process's thread, which never waits here: requests run on a thread of their
    own. Workers report the lag of the partitions that they own. This reader also knows the lag of
    partitions that have no owner, or whose owner is on another host.
    """

    def __init__(self, read: Callable[[], GroupView], ours: Callable[[str], bool]) -> None:
        """`read` may block, and may raise Unreachable or AdminRequestError.

        `ours` returns True if a group member of that name belongs to this instance.
        """
        self._read = read
        self._ours = ours
        self._asked: Future[GroupView] | None = None
        self._ask_at = 0.0
        self._known_at = 0.0
        self._view: GroupView | None = None

    def turn(self, now: float) -> None:
        """Requests the lag when the next request is due, and stores an answer that has arrived."""
        if self._asked is None:
            if now >= self._ask_at:
                self._ask_at = now + _ASK_EVERY_S
                self._asked = aside(self._read)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self._view, self._known_at = asked.result(), now
            except (Unreachable, AdminRequestError) as error:
                self._view = None
                _LOG.debug(
                    "cannot read the lag of the service's consumer group; trying again soon",
                    error=str(error),
                )
        if self._view is not None and now - self._known_at > _OLD_S:
            self._view = None

    def add_to(self, text: Text) -> Text:
        """Returns `text`, a report for the supervisor, with the group's lag added.

        Also adds the partitions that other instances own. Adds nothing while the lag is unknown.
        """
        view = self._view
        if view is None:
            return text
        # A partition whose owner has one of our names may have none: that member may have died.
        others = sorted(at for at, owner in view.owners.items() if not self._ours(owner))
        return replace(
            text,
            behind=_by_topic((at, count) for at, count in sorted(view.behind.items())),
            others=_by_topic((at, at[1]) for at in others),
        )


def make_group_lag(config: Config) -> GroupLagReader:
    """Makes the reader for the service's group, over its source topics and requeue topic."""
    watcher = GroupWatcher(admin_properties(config), config.name)

    def read() -> GroupView:
        existing = watcher.topic_names() if config.source.pattern else []
        return watcher.read([*source_topics(config, existing), config.requeue_topic])

    return GroupLagReader(read, lambda name: own_member(config, name))


def _by_topic(numbered: Iterable[tuple[PartitionId, int]]) -> Rows:
    """Returns one row for each topic, with the numbers given for the topic's partitions.

    This form is short even for thousands of partitions.
    """
    topics: dict[str, list[int]] = {}
    for (topic, _), number in numbered:
        topics.setdefault(topic, []).append(number)
    return tuple((topic, tuple(numbers)) for topic, numbers in topics.items())
