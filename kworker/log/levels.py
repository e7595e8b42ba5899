"""The levels of the log: `log.level`, and those of single loggers in `log.levels`."""

import logging
from collections.abc import Mapping

import structlog
from structlog.typing import EventDict, WrappedLogger

_RANKS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_leveled: set[str] = set()
"""The loggers of the module `logging` whose level comes from the configuration now."""


class LevelsByLogger:
    """The lowest level that each logger writes.

    A level that is set for `a` also applies to `a.b`, unless one is set for `a.b` itself.
    """

    def __init__(self, level: int, levels: Mapping[str, int]) -> None:
        self._level = level
        self._levels = levels
        self.lowest = min([level, *levels.values()])

    def of(self, name: str) -> int:
        """Returns the level of a logger: `log.level`, unless `log.levels` names it or a parent."""
        while name:
            if name in self._levels:
                return self._levels[name]
            name = name.rpartition(".")[0]
        return self._level

    def drop_low(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Drops events below the level of their logger; adds the logger's name to the other events.

        This is the first of structlog's processors.
        """
        name = getattr(logger, "name", "")  # the user's code may have wrapped one of its own
        if _RANKS.get(method, 50) < self.of(name):
            raise structlog.DropEvent
        return {"logger": name, **event} if name else event

    def apply_to_logging(self) -> None:
        """Sets the levels of loggers of `logging`; unsets levels that are no longer configured."""
        for name in _leveled - self._levels.keys():
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        _leveled.clear()
        _leveled.update(self._levels)
