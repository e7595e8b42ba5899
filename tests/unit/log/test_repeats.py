"""The log: an outage is told, and does not drown everything else."""

import logging

from kworker.log.repeats import Repeats


class Lines:
    """What passes, with the time in the test's hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.repeats = Repeats("librdkafka", every_s=10, clock=lambda: self.now)

    def passes(self, text: str, name: str = "librdkafka") -> int | None:
        """How many of its kind were withheld before it; None when it is withheld itself."""
        record = logging.makeLogRecord({"name": name, "msg": text})
        return getattr(record, "withheld", 0) if self.repeats.filter(record) else None


def test_lines_alike_but_for_numbers_are_counted_and_held_back() -> None:
    lines = Lines()
    assert lines.passes("Connect to 127.0.0.1:9092 failed (after 0ms)") == 0
    for after in range(1, 200):
        lines.now += 0.05
        assert lines.passes(f"Connect to 127.0.0.1:9092 failed (after {after}ms)") is None
    lines.now += 0.1
    assert lines.passes("Connect to 127.0.0.1:9092 failed (after 7ms)") == 199


def test_a_different_line_or_logger_is_not_held_back() -> None:
    lines = Lines()
    assert [lines.passes("broker 1 is down"), lines.passes("broker 1 is up")] == [0, 0]
    assert [lines.passes("order 1", "handlers"), lines.passes("order 2", "handlers")] == [0, 0]


def test_objects_in_a_line_are_like_numbers() -> None:
    """HTTP clients name the connection that failed by its address in memory."""
    lines = Lines()
    shown = [lines.passes(f"<HTTPConnection at {at:#x}> failed") for at in (0x7FA0, 0x7FA1B2)]
    assert shown == [0, None]


def test_the_loggers_of_a_librarys_modules_are_its_own() -> None:
    lines = Lines()
    assert lines.passes("down", "librdkafka.x") == 0
    assert lines.passes("down", "librdkafka.y") is None
    assert lines.passes("down", "librdkafka_of_mine") == 0


def test_the_memory_for_repeated_lines_is_bounded() -> None:
    """Texts with names in them could be without end."""
    lines = Lines()
    for n in range(2_000):
        lines.passes("x" * n)
    assert len(lines.repeats._seen) <= 500
