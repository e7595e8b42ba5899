"""The orders example: imported as its own programs import it, and its billing service."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from tests.support import examples

FOLDER = examples.EXAMPLES / "orders"


def imported(*names: str) -> AbstractContextManager[list[ModuleType]]:
    """Modules of the example, for a while."""
    return examples.imported(FOLDER, *names)


@contextmanager
def billing(*options: str) -> Iterator[str]:
    """The service as the demo starts it; gives its address."""
    command = [sys.executable, str(FOLDER / "billing.py"), "--port", "0", "--latency-ms", "0", "1"]
    service = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout
        yield service.stdout.readline().strip()
    finally:
        service.terminate()
        assert service.wait(10) == 0


def calls(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/calls", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
