"""The examples, imported as their own programs import them: by bare names, from their folder."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"
LEDGER = EXAMPLES / "ledger"


@contextmanager
def imported(folder: Path, *names: str) -> Iterator[list[ModuleType]]:
    """Modules of an example; their names, which others' handlers have too, are free after it."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]
