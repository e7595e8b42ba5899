"""The checks of the brokers, over an administrator's client that knows topics and no broker."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from kworker.config import toml_file
from kworker.config.topics import TopicInfo
from kworker.core.offset_map import TopicIdentity
from kworker.errors import ClientRejected, ExitCode
from kworker.preflight import findings, kafka
from tests.support.config_text import smallest


class OldBrokers:
    """They have every topic, and tell ids of those that are not `nameless`."""

    def __init__(self, nameless: Iterable[str] = ()) -> None:
        self._nameless = set(nameless)

    def topic_names(self) -> list[str]:
        return ["orders"]

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        values = dict.fromkeys(config, "1000000")
        return {name: TopicInfo(2, 1, values) for name in names}

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        return {name: TopicIdentity("c", f"id of {name}") for name in {*topics} - self._nameless}


@pytest.mark.parametrize("nameless", [["orders"], ["orders", "shop.requeue"], ["shop.results"]])
def test_topics_whose_ids_the_brokers_do_not_tell_are_named(
    nameless: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would wait for them; of a topic that is only written none is needed."""
    (tmp_path / "kworker.toml").write_text(smallest(name="shop"))
    config = toml_file.load(tmp_path / "kworker.toml")
    monkeypatch.setattr(kafka, "admin_of", lambda _: OldBrokers(nameless))
    found = [each for each in kafka.check_topics(config) if each.exit_code is not ExitCode.OK]
    if nameless == ["shop.results"]:
        assert found == []
        return
    assert [str(each) for each in found] == [
        f"source.topics: the brokers do not tell the ids of {', '.join(nameless)}: DESCRIBE must"
        " be allowed on them, and brokers be 2.8 or newer; workers wait until the brokers tell them"
    ]
    assert findings.exit_code(found) is ExitCode.UNREACHABLE


class LockedBrokers:
    """They turn the client away."""

    def topic_names(self) -> list[str]:
        raise ClientRejected("the brokers refuse the login", "kafka.sasl.password", "correct it")


def test_a_login_that_is_refused_is_told_at_its_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers run; a start waits, because the password may be corrected on their side."""
    (tmp_path / "kworker.toml").write_text(smallest(name="shop"))
    monkeypatch.setattr(kafka, "admin_of", lambda _: LockedBrokers())
    found = kafka.check_topics(toml_file.load(tmp_path / "kworker.toml"))
    assert [str(each) for each in found] == [
        "kafka.sasl.password: the brokers refuse the login; correct it"
    ]
    assert findings.exit_code(found) is ExitCode.UNREACHABLE
