"""`kworker pause` and `kworker resume`, where no service runs: what they say, and leave behind."""

import json
from pathlib import Path

import pytest

from kworker.cli.main import run
from kworker.core.pauses import ALL, in_force
from kworker.errors import ExitCode
from kworker.instance.pause_file import PauseFile

CONFIG = """
name = "shop"
handler = "handlers:notify"
state_dir = "state"
instance = "host-1"
[source]
topics = {topics}
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
"""
REDIS = """
[idempotency]
redis = "redis://127.0.0.1:1/0"
key = "key"
"""
LONG_AGO_MS = 1_700_000_000_000


class Desk:
    """An operator at the folder of an instance."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._config = folder / "kworker.toml"
        self.file = PauseFile(folder / "state" / "pauses.json")
        self.configure()

    def configure(self, *topics: str, more: str = "") -> None:
        text = CONFIG.format(topics=json.dumps(topics or ("orders", "payments")))
        self._config.write_text(text + more)

    def types(self, *words: str) -> tuple[int, str]:
        """The exit code of `kworker …`, and what it says."""
        self._capsys.readouterr()
        code = run([*words, "--config", str(self._config)])
        out, errors = self._capsys.readouterr()
        return code, out + errors

    def paused(self) -> dict[str, int | None]:
        """The end of each pause in force, by topic."""
        found = in_force(self.file.read(), LONG_AGO_MS)
        return {topic: pause.until_ms for topic, pause in found.items()}


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_a_pause_needs_no_running_service(desk: Desk) -> None:
    """It is for the next start then, and the command says so."""
    code, said = desk.types("pause")
    assert code == 0
    assert "shop: all topics paused until `kworker resume`; records in hand finish\n" in said
    assert "shop is not running here; it will start paused\n" in said
    assert "this holds for the instance host-1 alone" in said
    assert desk.paused() == {ALL: None}
    assert desk.types("resume")[1].startswith("shop: all topics resumed\n")
    assert desk.paused() == {}


def test_topics_are_paused_and_resumed_each_by_itself(desk: Desk) -> None:
    assert desk.types("pause", "--topic", "orders", "--topic", "shop.requeue")[0] == 0
    assert desk.paused() == {"orders": None, "shop.requeue": None}
    code, said = desk.types("resume", "--topic", "orders", "--topic", "payments")
    assert (code, said[: said.index("this holds")]) == (
        0,
        "shop: payments was not paused\nshop: orders resumed\n",
    )
    assert desk.paused() == {"shop.requeue": None}


def test_a_second_pause_moves_the_end_of_the_first(desk: Desk) -> None:
    code, said = desk.types("pause", "--topic", "orders", "--for", "10m")
    assert (code, " or `kworker resume`; records in hand" in said) == (0, True)
    [soon] = desk.paused().values()
    [began] = (pause.since_ms for pause in in_force(desk.file.read(), LONG_AGO_MS).values())
    assert soon == began + 600_000
    desk.types("pause", "--topic", "orders", "--for", "1h")
    [later] = desk.paused().values()
    assert later is not None
    assert later - soon >= 3_000_000 - 1
    desk.types("pause", "--topic", "orders")
    assert desk.paused() == {"orders": None}
    assert {pause.since_ms for pause in in_force(desk.file.read(), 0).values()} == {began}


def test_to_resume_what_is_not_paused_is_no_failure(desk: Desk) -> None:
    """A script may resume without looking."""
    assert desk.types("resume") == (0, "shop: nothing was paused\n")
    assert desk.types("resume", "--topic", "orders") == (0, "shop: orders was not paused\n")


def test_one_topic_cannot_be_resumed_out_of_a_pause_of_all(desk: Desk) -> None:
    """It would look as if records came again."""
    desk.types("pause")
    desk.types("pause", "--topic", "orders")
    code, said = desk.types("resume", "--topic", "orders")
    assert code == ExitCode.FAILURE
    assert "resume all with `kworker resume`" in said
    assert desk.paused() == {ALL: None, "orders": None}
    assert desk.types("resume")[1].startswith("shop: all topics, orders resumed\n")
    assert desk.paused() == {}


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_unknown_topic_is_refused_with_those_there_are(desk: Desk, verb: str) -> None:
    code, said = desk.types(verb, "--topic", "order", "--topic", "orders")
    assert code == ExitCode.USAGE
    assert said == (
        f"kworker: {verb}: shop does not read order; its topics are: orders, payments,"
        " shop.requeue\n"
    )
    assert desk.paused() == {}


def test_a_topic_that_is_read_no_more_can_be_resumed(desk: Desk) -> None:
    desk.types("pause", "--topic", "payments")
    desk.configure("orders")
    assert desk.types("resume", "--topic", "payments")[0] == 0
    assert desk.paused() == {}


def test_a_topic_of_a_pattern_is_looked_up_on_the_brokers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a name with a mistake would pause nothing, and say nothing."""
    monkeypatch.setattr("kworker.cli.dead.access.TIMEOUT_S", 1.0)
    desk.configure("^orders-")
    code, said = desk.types("pause", "--topic", "orders-1")
    assert (code, "no broker of 127.0.0.1:1 answers" in said) == (ExitCode.UNREACHABLE, True)
    assert desk.types("pause")[0] == 0, "all topics need no broker"


@pytest.mark.parametrize("time", ["0s", "10", "-5m", "soon"])
def test_a_wrong_time_is_refused(desk: Desk, time: str) -> None:
    code, said = desk.types("pause", f"--for={time}")
    assert (code, said.startswith("kworker: pause: the value of --for is ")) == (2, True)
    assert desk.paused() == {}


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_damaged_file_is_left_to_the_operator(desk: Desk, verb: str) -> None:
    """Workers keep the pauses that it held; no command can know which these are."""
    desk.types("pause")
    desk.file.path.write_text("{")
    code, said = desk.types(verb)
    assert code == ExitCode.FAILURE
    assert "pauses.json is damaged: remove it, then pause again what shall be paused" in said
    assert desk.file.path.read_text() == "{"


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_without_redis_an_order_holds_here_and_is_no_success(desk: Desk, verb: str) -> None:
    """In an emergency half of the hosts are better than none, if one is told."""
    desk.types("pause")
    desk.configure(more=REDIS)
    code, said = desk.types(verb, *(["--for", "1h"] if verb == "pause" else []))
    assert code == ExitCode.UNREACHABLE
    assert "since Redis does not answer (" in said
    assert "done on this host only" in said
    assert desk.paused() != {ALL: None}


def test_an_invalid_address_of_redis_is_a_mistake_of_the_file(desk: Desk) -> None:
    """It could not be told from a Redis that is away, and waiting would not help."""
    desk.configure(more=REDIS.replace(":1/0", ":port/0"))
    code, said = desk.types("pause")
    assert code == ExitCode.CONFIG
    assert said.startswith("kworker: idempotency.redis: ")
    assert desk.paused() == {}


def test_accepting_dead_letters_resumes_nothing(desk: Desk) -> None:
    desk.types("pause")
    assert desk.types("resume", "--accept-dead", "--topic", "orders")[0] == ExitCode.USAGE
    assert desk.types("resume", "--accept-dead")[0] == ExitCode.NOT_RUNNING
    assert desk.paused() == {ALL: None}
