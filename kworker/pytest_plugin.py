"""The fixture `kworker_run`, which pytest finds where kworker is installed.

Every pytest run in such an environment imports this module. So the module imports the rest of
kworker only when a test calls `kworker_run`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kworker.testing.report import RunReport


@pytest.fixture
def kworker_run(request: pytest.FixtureRequest) -> Callable[..., "RunReport"]:
    """Runs records through the service whose `kworker.toml` is beside the test, or above it.

    `kworker_run(records, settings=…, handler=…)` is `kworker.testing.run` with that file, and with
    its handlers unless `handler` is given. `settings` override environment variables, and those
    override the file.
    """
    folders = [request.path.parent, *request.path.parent.parents]
    files = [folder / "kworker.toml" for folder in folders]
    config: Path | None = next((file for file in files if file.is_file()), None)

    def run_here(
        records: Iterable[Any],
        *,
        settings: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        **limits: float,
    ) -> "RunReport":
        from kworker.testing import run

        if config is None:
            pytest.fail(f"no kworker.toml beside {request.path}, or above it", pytrace=False)
        return run(handler, records, config=config, settings=settings, **limits)

    return run_here
