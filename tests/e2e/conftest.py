"""What end-to-end tests may ask for: the command as a user types it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

COMMAND_TIMEOUT_S = 240.0

Kworker = Callable[..., subprocess.CompletedProcess[str]]
Meanwhile = Callable[..., "Future[Any]"]
"""Begins a call whose answer takes its time; `result()` waits for it."""


@pytest.fixture(scope="session")
def command() -> list[str]:
    """How `kworker` is started: the checkout's own, installed or not."""
    return [sys.executable, "-c", "from kworker.cli.main import main; main()"]


@pytest.fixture(scope="session")
def kworker(command: list[str]) -> Kworker:
    """Runs `kworker …` to its end, in a process of its own."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def meanwhile() -> Iterator[Meanwhile]:
    """For waits that need no processor: a module begins them before its first test."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit
