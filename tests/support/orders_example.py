"""The orders example, imported as its own programs import it."""

from contextlib import AbstractContextManager
from types import ModuleType

from tests.support import examples

FOLDER = examples.EXAMPLES / "orders"


def imported(*names: str) -> AbstractContextManager[list[ModuleType]]:
    """Modules of the example, for a while."""
    return examples.imported(FOLDER, *names)
