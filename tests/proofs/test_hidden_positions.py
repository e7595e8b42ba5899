"""A transaction that hangs hides committed positions: waited for, told, and ended by a command."""

import json
import time
from pathlib import Path

from tests.support.hanging import hang
from tests.support.kafka import create_topic
from tests.support.service import Service, service

EXIT_UNREACHABLE = 69


def test_hidden_positions_are_waited_for_until_a_command(tmp_path: Path, strict: str) -> None:
    """Positions are hidden before the first worker and in a rebalance, which a drain gives up."""
    source = create_topic(strict, f"hidden-{tmp_path.name}", 2)
    settings = {"workers": {"processes": 1, "threads": 2}}
    with service(tmp_path / "service", strict, [source], settings=settings) as hidden:
        hang(strict, hidden.name, source, 1)
        hidden.start()
        hidden.until(lambda: says(hidden, f"{source}/1 is hidden by a transaction"), "it says so")
        assert hidden.state() == "waiting"
        checked = hidden.command("check", "--online")
        assert checked.returncode == EXIT_UNREACHABLE
        assert f"{source}/1 is hidden by a transaction that has not ended" in checked.stdout
        [found] = json.loads(
            hidden.command("transactions", "list", "--older", "0", "--json").stdout
        )
        assert (found["topic"], found["hangs"]) == ("__consumer_offsets", True)
        assert found["transactional_id"] == f"hangs-{hidden.name}"
        ended = hidden.command("transactions", "abort", "--older", "0", "--yes")
        assert (ended.returncode, ended.stderr) == (0, "")
        hidden.is_running()
        pids = hidden.worker_pids()
        hang(strict, hidden.name, source, 0)
        assert hidden.command("scale", "2").returncode == 0
        hidden.until(lambda: says(hidden, f"{source}/0 is hidden by a transaction"), "it says so")
        assert all(row["heartbeat_age_s"] < 10 for row in hidden.workers().values())
        assert pids.items() <= hidden.worker_pids().items()
        began = time.monotonic()
        assert hidden.stop() == 0
        assert time.monotonic() - began < 20
        hidden.is_gone()
    assert "Traceback" not in hidden.said()


def says(running: Service, words: str) -> bool:
    return any(words in reason for reason in running.status().get("reasons", []))
