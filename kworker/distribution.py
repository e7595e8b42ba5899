"""The distribution that this package comes from; on package indexes its name is another's."""

from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

NAME = "kworker-daemon"


def package_version() -> str:
    """kworker's own version; "unknown" in a checkout that was never installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "unknown"


def how_to_install(extra: str) -> str:
    """The command that installs what an extra stands for.

    It names the requirements themselves: an installed distribution may have come from a
    checkout, or from a wheel that is there no more, and it is not on the index.
    """
    try:
        declared = [line.partition(";") for line in requires(NAME) or ()]
    except PackageNotFoundError:
        return f'pip install "{Path(__file__).parents[1]}[{extra}]"'
    wanted = [what.strip() for what, _, when in declared if f'extra == "{extra}"' in when]
    return " ".join(["pip install", *(f'"{what}"' for what in wanted)])
