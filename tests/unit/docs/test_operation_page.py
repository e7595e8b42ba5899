"""docs/operation.md has each signal, and each key that a reload cannot change."""

import re
import signal

from kworker.supervisor import reload
from kworker.supervisor.signals import HANDLED
from tests.unit.docs.pages import page, rows, spans

TEXT = page("operation.md")


def test_each_signal_of_the_supervisor_is_described() -> None:
    described = [
        f"SIG{name}"
        for first, _ in rows(TEXT, "signal to the supervisor")
        for name in re.findall(r"\w+", first)
    ]
    handled = {signal.Signals(number).name for number in HANDLED} - {"SIGCHLD"}
    assert sorted(described) == sorted(handled)


def test_each_key_that_a_reload_cannot_change_is_named() -> None:
    [sentence] = re.findall(r"^A reload cannot change [^:]*", TEXT, re.MULTILINE)
    keys = {key.removeprefix("kafka.") for key in reload._FIXED_KEYS}
    assert set(spans(sentence)) == keys
