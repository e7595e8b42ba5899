"""The orders example, imported as its own programs import it: by bare names, from its folder."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "examples" / "orders"


@contextmanager
def imported(*names: str) -> Iterator[list[ModuleType]]:
    """Modules of the example; their names, which others' handlers have too, are free after it."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(FOLDER))
        for name in sys.modules.keys() - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(FOLDER)):
                del sys.modules[name]
