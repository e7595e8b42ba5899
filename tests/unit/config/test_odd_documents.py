"""Every document either loads or is refused: a reload of it must not end a service that runs."""

import contextlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.config import toml_file
from kworker.config.keys import Key, all_keys
from kworker.errors import ConfigError
from tests.unit.config.test_toml_file import SPARK_TABLE, Load, Problems, load, problems, toml

__all__ = ["load", "problems"]

HUGE = "9" * 400
ODD = [
    ("spark", 'tables = ["orders", { path = "x" }]', "spark.tables[0]: expected a table"),
    ("spark", 'tables = [{ path = "x" }, "orders"]', "spark.tables[0].name: missing"),
    ("spark", "tables = [[]]", "spark.tables[0]: expected a table"),
    ("retry", 'delays = ["x", { y = 1 }, "1s"]', "retry.delays[0]: expected a duration"),
    ("workers", f"threads = 0x{HUGE}", "workers.threads: expected a number of at most 64 bits"),
    ("workers", f'memory = "{HUGE}B"', "workers.memory: expected a size"),
    ("workers", f'drain_timeout = "{HUGE}s"', "workers.drain_timeout: expected a duration"),
    ("dead_letter", f'breaker = "{"5" * 5000}% of 200"', "dead_letter.breaker: expected"),
    ("source", "max_age = " + "[" * 40 + "]" * 40, "source.max_age[0]"),
    ("kafka", '"queued.max.messages.kbytes" = inf', "kafka.queued.max.messages.kbytes: expected"),
    ("kafka", "a" + ".a" * 1200 + " = 1", "kafka.a.a"),
    ("kafka", 'ssl.crl.pem = { env = "NOT_TEXT" }', "kafka.ssl.crl.pem: expected text in UTF-8"),
]


@pytest.mark.parametrize(("section", "line", "found"), ODD, ids=lambda text: text[:20])
def test_an_odd_value_is_told_with_its_key(
    problems: Problems, monkeypatch: pytest.MonkeyPatch, section: str, line: str, found: str
) -> None:
    """An exception would end the supervisor that reads it, and say nothing of the key."""
    monkeypatch.setenv("NOT_TEXT", "\udcff")
    assert problems(toml(**{section: line}))[0].startswith(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (toml(top="x = " + "[" * 9999), "is not TOML: "),
        (toml(top="x = " + "9" * 9999), "is not TOML: "),
        (toml(top="x = 2024-02-31"), "is not TOML: "),
        ('name = "a\udcff"', "is not TOML: "),
    ],
    ids=["deep", "long", "no day", "no text"],
)
def test_an_unreadable_document_is_no_toml(tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "kworker.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=found):
        toml_file.load(file)


def test_a_variable_nested_without_end_is_refused(
    problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWORKER_SOURCE__TOPICS", "[" * 99999)
    assert problems(toml())[0].startswith("source.topics: expected a list")


def test_a_transaction_timeout_out_of_range_is_for_the_client(load: Load) -> None:
    """Only librdkafka knows the range of its properties."""
    text = toml(delivery='guarantee = "exactly-once"')
    text += f'[kafka.producer]\n"transaction.timeout.ms" = "{HUGE}"\n'
    assert load(text).kafka.producer == {"transaction.timeout.ms": HUGE}


def test_a_file_that_cannot_be_looked_for_is_refused(tmp_path: Path) -> None:
    """In a closed folder, or by a name that the system does not take."""
    with pytest.raises(ConfigError, match=r"/x+ cannot be read: File name too long$"):
        toml_file.find(tmp_path / ("x" * 300))


def test_a_removed_working_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a release that a deployment has removed."""
    monkeypatch.delenv("KWORKER_CONFIG", raising=False)
    monkeypatch.setattr(toml_file, "SYSTEM_FILE", tmp_path / "kworker.toml")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"^the working folder cannot be read: No such file"):
        toml_file.find()


TEXTS = [
    *("", "orders", "^[", "^a{99999999999}", "^(a|b)", "5s", "64MiB", "redis://[", "[::1", "::1"),
    *("h:f", "json:id", "50% of 200", "append", "consumer", "available-now", "\udcff", HUGE, "\0"),
]
SCALARS = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=8),
    st.integers(),
    st.sampled_from([0, 1, 1 << 70]),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.times(),
)
NAMES = st.sampled_from(["", "a", "name", "path", "file", "env", "common", "consumer", "topics"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
PROPERTIES: list[Key] = [("kafka", name) for name in ("acks", "transaction.timeout.ms")]
KEYS: list[Key] = [*all_keys(), *PROPERTIES, ("x",)]
ENDLESS: list[Any] = []
for _ in range(40):
    ENDLESS = [ENDLESS]
EVERYWHERE: list[Any] = [
    *(1 << 70, 1 << 20_000, -1, float("inf"), float("nan"), True, ENDLESS),
    *(HUGE, f"{HUGE}B", f"{HUGE}s", f"{'5' * 5000}% of 200", "\udcff", "redis://["),
    *(["^a{99999999999}"], ["^("], ["orders", {"path": "x"}], [{"path": "x"}, "orders"], [[]]),
    *({"a": {"b": [1]}}, {"env": "\udcff"}, {"env": "A=\0"}, {"file": "\0"}, {"": "\udcff"}),
]


@pytest.mark.parametrize("value", EVERYWHERE, ids=lambda value: type(value).__name__)
def test_an_odd_value_loads_or_is_refused_at_each_key(value: Any) -> None:
    """A reader of one key may take what that of another does not."""
    for key in KEYS:
        read([(key, value)])


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=4))
def test_every_document_loads_or_is_refused(changes: Sequence[tuple[Key, Any]]) -> None:
    """The tables above have what was thought of."""
    read(changes)


def read(changes: Sequence[tuple[Key, Any]]) -> None:
    """Loads a document with these changes, or has it refused."""
    document = tomllib.loads(f"{toml()}[[spark.tables]]\n{SPARK_TABLE}\n")
    for key, value in changes:
        put(document, key, value)
    with contextlib.suppress(ConfigError):
        toml_file.from_tables(document, Path("/etc/kworker.toml"), {})


def put(document: Any, key: Key, value: Any) -> None:
    """Sets the value at a key, unless there is no table or list around it any more."""
    *around, last = key
    for part in around:
        if isinstance(document, list):
            document = document[0] if document else None
        elif isinstance(document, dict):
            document = document.setdefault(part, {})
    if isinstance(document, dict):
        document[last] = value
