"""The distribution that this package comes from; its name differs from the package's."""

from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

NAME = "kworker-daemon"


def package_version() -> str:
    """Returns kworker's own version; "unknown" in a checkout that was never installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "unknown"


def how_to_install(extra: str) -> str:
    """Returns the pip command that installs the requirements of an extra.

    The command names the requirements themselves, because the distribution is on no index: it was
    installed from a checkout or from a wheel that may have been deleted.
    """
    try:
        declared = [line.partition(";") for line in requires(NAME) or ()]
    except PackageNotFoundError:
        return f'pip install "{Path(__file__).parents[1]}[{extra}]"'
    wanted = [what.strip() for what, _, when in declared if f'extra == "{extra}"' in when]
    return " ".join(["pip install", *(f'"{what}"' for what in wanted)])
