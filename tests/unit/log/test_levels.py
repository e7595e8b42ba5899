"""`log.levels`: one logger says more, or less, than the others."""

import logging

import structlog

from tests.unit.log.events import WrittenLog


def _debug_and_warn() -> None:
    for name in ("my.module", "my.module.part", "my", "urllib3"):
        for logger in (logging.getLogger(name), structlog.get_logger(name)):
            logger.debug("d")
            logger.warning("w")


def test_a_level_is_that_of_a_logger_and_those_below_it(written: WrittenLog) -> None:
    written.configure(levels={"my.module": "debug", "urllib3": "error"})
    _debug_and_warn()
    seen = [(event["logger"], event["event"]) for event in written.events()]
    of_module = [("my.module", "d"), ("my.module", "w")] * 2
    of_part = [("my.module.part", "d"), ("my.module.part", "w")] * 2
    assert seen == [*of_module, *of_part, ("my", "w"), ("my", "w")]


def test_other_loggers_keep_the_level_of_the_log(written: WrittenLog) -> None:
    """A level below that of the log must not open the log for kworker's own debug lines."""
    written.configure(levels={"my.module": "debug"})
    structlog.get_logger().debug("of kworker")
    logging.getLogger("other").debug("of a library")
    assert written.events() == []


def test_a_reload_takes_back_a_level_that_is_gone(written: WrittenLog) -> None:
    written.configure(levels={"urllib3": "error"})
    written.configure()
    logging.getLogger("urllib3").warning("w")
    assert len(written.events()) == 1
