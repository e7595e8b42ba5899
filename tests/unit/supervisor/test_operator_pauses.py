"""The supervisor's view of an operator's pauses: the state, the rows of the status, the log."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kworker.config.model import Config, KafkaSettings, SourceSettings
from kworker.core.pauses import ALL, order_pause, order_resumption
from kworker.instance.pause_file import PauseFile, WatchedPauses
from kworker.supervisor.mode import Mode
from kworker.supervisor.operator_pauses import OperatorPauses

NOW_S = 1_790_000_000.0
NOW_MS = int(NOW_S * 1000)
NAMED = ("orders", "payments")


def config(*topics: str) -> Config:
    return Config(
        name="shop",
        handler="handlers:notify",
        source=SourceSettings(topics=list(topics)),
        kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:1"}),
        file=Path("kworker.toml"),
    )


class Supervisor:
    """Looks at the file once a second."""

    def __init__(self, folder: Path) -> None:
        self.file = PauseFile(folder / "pauses.json")
        self.wall = NOW_S
        self.pauses = OperatorPauses(WatchedPauses(self.file, lambda: self.wall))
        self._now = 0.0

    def pause(self, *topics: str, by: str = "ann@here", until_ms: int | None = None) -> None:
        self.file.add(order_pause(self.file.read(), topics, by, NOW_MS, until_ms))

    def resume(self, *topics: str) -> None:
        self.file.add(order_resumption(self.file.read(), topics, "bob@there", NOW_MS))

    def logs(self) -> list[dict[str, object]]:
        """What it writes in a turn."""
        self._now += 1.0
        with capture_logs() as lines:
            self.pauses.turn(self._now)
        return [dict(line) for line in lines]


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path)


@pytest.mark.parametrize(
    ("mode", "problems", "joined", "state"),
    [
        (Mode.STARTING, [], False, "starting"),
        (Mode.STARTING, ["no broker answers"], False, "waiting"),
        (Mode.SERVING, [], False, "starting"),
        (Mode.SERVING, [], True, "paused"),
        (Mode.SERVING, ["no broker answers"], True, "red"),
        (Mode.DRAINING, [], True, "draining"),
        (Mode.CLOSING, ["no broker answers"], True, "draining"),
    ],
)
def test_a_pause_shows_where_the_state_would_be_running(
    mode: Mode, problems: list[str], joined: bool, state: str
) -> None:
    """It hides no problem, and no start or end."""
    assert mode.state(problems, joined=joined, paused=True) == state
    unpaused = mode.state(problems, joined=joined, paused=False)
    assert unpaused == ("running" if state == "paused" else state)


@pytest.mark.parametrize(
    ("paused", "topics", "complete"),
    [
        ([], NAMED, False),
        ([ALL], NAMED, True),
        (["orders"], NAMED, False),
        (["orders", "payments"], NAMED, False),  # retries go on
        (["orders", "payments", "shop.requeue"], NAMED, True),
        ([ALL], ["^orders-"], True),
        (["orders-1", "shop.requeue"], ["^orders-"], False),
    ],
)
def test_the_service_is_paused_when_nothing_is_taken(
    supervisor: Supervisor, paused: list[str], topics: tuple[str, ...], complete: bool
) -> None:
    supervisor.pause(*paused)
    supervisor.logs()
    assert supervisor.pauses.is_complete(config(*topics)) is complete


def test_a_row_says_who_paused_what_since_when_and_until_when(supervisor: Supervisor) -> None:
    supervisor.pause("payments", until_ms=NOW_MS + 60_000)
    supervisor.pause(ALL)
    supervisor.logs()
    row = {"since_ms": NOW_MS, "by": "ann@here"}
    assert supervisor.pauses.rows() == [
        {"topic": "*", "until_ms": None, **row},
        {"topic": "payments", "until_ms": NOW_MS + 60_000, **row},
    ]


def test_each_beginning_and_end_of_a_pause_is_logged_once(supervisor: Supervisor) -> None:
    """Also that which ends by itself, and at a start that which was ordered before."""
    supervisor.pause("orders", until_ms=NOW_MS + 60_000)
    supervisor.pause(ALL)
    begun = supervisor.logs()
    assert {line["event"].split(":")[0] for line in begun} == {"paused orders", "paused all topics"}
    assert {line["until"] for line in begun} == {"2026-09-21 14:14:20Z", "kworker resume"}
    assert supervisor.logs() == []
    supervisor.wall += 60
    [ended] = supervisor.logs()
    assert ended["event"] == "resumed orders: records are taken again"
    assert ended["why"] == "the time of the pause is over"
    supervisor.resume(ALL)
    [ended] = supervisor.logs()
    assert ended["event"] == "resumed all topics: records are taken again"
    assert ended["why"] == "ordered by bob@there"
    assert supervisor.logs() == []
