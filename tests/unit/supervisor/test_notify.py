"""Messages to systemd, which ignores those that are too long for it."""

import socket
from pathlib import Path

import pytest

from kworker.supervisor.notify import Notifier

SYSTEMD_READS_BYTES = 4096


@pytest.mark.parametrize(
    "status", ["red: a reason", "red: " + "a reason; " * 1_000, "é" * 4_000, "\udcff: a reason"]
)
def test_a_status_is_cut_to_what_systemd_reads(tmp_path: Path, status: str) -> None:
    """Else `systemctl status` would show an older line while there are many problems."""
    address = str(tmp_path / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        Notifier({"NOTIFY_SOCKET": address}).status(status)
        heard = systemd.recv(1 << 20)
    assert len(heard) <= SYSTEMD_READS_BYTES
    whole = f"STATUS={status}".encode(errors="backslashreplace").decode()
    assert whole.startswith(heard.decode())
    assert len(heard) > SYSTEMD_READS_BYTES - 4 or heard.decode() == whole
