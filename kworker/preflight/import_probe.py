"""Imports handlers and reports problems, in a separate process: an import may do anything.

Run as `python -m kworker.preflight.import_probe DESCRIPTOR REQUEST`, with a request in JSON: the
report goes to the open file descriptor, since handlers may print.
"""

import json
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kworker.errors import ConfigError
from kworker.instance.proc import rss_bytes
from kworker.worker.handlers.loader import find, read_signatures
from kworker.worker.handlers.unfit_handler import UnfitHandler

_WORDS_MAX = 2_000  # characters of an error, which may contain a whole document


class ReferenceProblem(NamedTuple):
    """The fault of a Python reference, and the user's next step; `step` is "" if unknown."""

    problem: str
    step: str = ""


def main(arguments: Sequence[str]) -> None:
    """Imports references such as `module:function`; writes a JSON report to a file descriptor.

    The report has the problem of each reference that cannot be used, and the memory of this
    process. The arguments are the descriptor, and a request: the folder of the user's code, the
    references, those of them that are handlers, and `workers.in_flight`.
    """
    descriptor, request = int(arguments[0]), json.loads(arguments[1])
    sys.path.insert(0, request["folder"])
    found = problems(**request)
    words = {"problems": found, "rss_bytes": rss_bytes(os.getpid())}
    os.write(descriptor, json.dumps(words).encode())
    # A thread that a handler's module started must not keep this process.
    os._exit(0)


def problems(
    folder: str, references: Sequence[str], handlers: Collection[str], in_flight: int
) -> Mapping[str, ReferenceProblem]:
    """Imports each Python reference; returns the problem of each that cannot be used."""
    found: dict[str, ReferenceProblem] = {}
    fitting: dict[str, Any] = {}
    for reference in references:
        try:
            imported = find(reference)
            if reference in handlers:
                read_signatures({**fitting, reference: imported}, in_flight)
                fitting[reference] = imported
        except BaseException as error:  # noqa: BLE001 - the user's module may even exit
            found[reference] = _problem(error, folder)
    return found


def _problem(error: BaseException, folder: str) -> ReferenceProblem:
    if isinstance(error, UnfitHandler):
        return ReferenceProblem(error.problem, error.step)
    if not isinstance(error, ConfigError):
        return ReferenceProblem(f"does not import: {_last_words(error, folder)}")
    if error.__cause__:
        return ReferenceProblem(f"does not import: {_last_words(error.__cause__, folder)}")
    return ReferenceProblem(f"cannot be used: {str(error).removeprefix('handler: ')}")


def _last_words(error: BaseException, folder: str) -> str:
    """Returns an error's type and message, and where in the user's code the error was raised."""
    words = traceback.format_exception_only(error)[-1].strip()[:_WORDS_MAX]
    places = [*_places(error)]
    own = [place for place in places if place[0].startswith(folder)]
    for file, line in (own or places)[-1:]:
        words += f" ({os.path.relpath(file, folder) if own else file} line {line})"
    return words


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    for frame in traceback.extract_tb(error.__traceback__):
        inside = frame.filename.startswith("<frozen") or frame.filename == find.__code__.co_filename
        if not inside and not frame.filename.endswith("importlib/__init__.py"):
            yield os.path.abspath(frame.filename), frame.lineno or 0
    if isinstance(error, SyntaxError) and error.filename:
        yield os.path.abspath(error.filename), error.lineno or 0


if __name__ == "__main__":
    main(sys.argv[1:])
