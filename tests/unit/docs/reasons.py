"""The texts that `kworker status` may show as problems, read from the source of the package.

A function that makes such a text is found by its name, by what it assigns to, or by what it calls.
So a new text is found without a change here, and a test can ask the page for it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kworker

PACKAGE = Path(kworker.__file__).parent

# The rooms and files whose problems reach the status.
PLACES = (
    "supervisor",
    "worker",
    "delay",
    "preflight",
    "spark",
    "clients/admin_connection.py",
    "clients/awaited_positions.py",
    "clients/connection_failures.py",
    "clients/leader.py",
    "clients/offsets.py",
    "clients/watch.py",
    "core/leadership.py",
    "core/membership.py",
    "core/offset_map.py",
    "core/ownership.py",
    "core/wear.py",
)
# Files in these places whose texts are shown elsewhere.
ELSEWHERE = {
    "preflight/import_probe.py": "a start that ends with 78",
    "preflight/spark.py": "kworker check",
    "spark/checkpoints/reset.py": "kworker spark reset",
    "spark/compaction.py": "kworker spark compact",
    "spark/rows/kafka_options.py": "the log of a job that ends with 78",
    "spark/session/remote_folder.py": "kworker spark reset",
    "spark/tables/table_audit.py": "kworker audit",
    "supervisor/control/": "the command that is refused",
    "supervisor/health.py": "the log",
    "supervisor/reload.py": "the command that is refused",
    "supervisor/service.py": "the command that is refused",
    "worker/handlers/": "a start that ends with 78",
    "worker/tracing/": "a start that ends with 78",
}
# Texts of the other files that are shown elsewhere.
OTHER_TEXTS = {
    "clients/leader.py": {"kafka.consumer: …": "an exit with 78"},
    "preflight/imports.py": {"the Python reference … …": "a start that ends with 78"},
    "preflight/positions.py": {" in each of these partitions (--topic, --partition)": "a part"},
    "preflight/second_copy.py": {
        "… runs on this host already as instance …, …, …": "an exit with 73",
        "as pid …": "a part of that",
        "in a process that cannot be seen from here": "a part of that",
        "which does not answer": "a part of that",
    },
    "spark/rows/frames.py": {
        "CASE WHEN … THEN text END": "SQL",
        "CASE WHEN NOT is_plain THEN text END": "SQL",
        "json_object_keys(…) AS fields": "SQL",
    },
    "spark/standby.py": {"another process": "a part of another text"},
    "supervisor/preflight_child.py": {
        "the preflight check crashed (…)": "a start that ends with 78",
        "…: the handler's module cannot be imported": "a start that ends with 78",
    },
    "worker/publish/undeliverable.py": {"dead letter": "a part of another text"},
}
# Functions, classes and constants that hold texts for those functions.
FURTHER = {
    "clients/awaited_positions.py": {"_why"},
    "clients/leader.py": {"_TEXTS", "_describe"},
    "clients/offsets.py": {"_describe"},
    "core/membership.py": {"Absence"},
    "core/offset_map.py": {"ids_untold"},
    "core/wear.py": {"reason"},
    "preflight/second_copy.py": {"_members"},
    "spark/batch_limits.py": {"lower"},
    "spark/checkpoints/guard.py": {"_another_topic", "_half_reset", "next_step"},
    "spark/launch.py": {"_changed"},
    "spark/reasons.py": {"_with_step", "explained"},
    "spark/rows/columns.py": {"missing_columns"},
    "spark/standby.py": {"why_standby"},
    "spark/tables/fences.py": {"TableFenced"},
    "supervisor/children/console_child.py": {"on_exit"},
    "supervisor/startup.py": {"_maybe_alive"},
    "worker/intake.py": {"_NO_POSITION"},
    "worker/poll_loop.py": {"_map_full"},
    "worker/publish/silent_topics.py": {"NO_ANSWER"},
    "worker/publish/undeliverable.py": {"describe"},
    "worker/settlement.py": {"held"},
}
_NAMED = re.compile(r"problems?$")
_ASSIGNED = re.compile(r"problem|silence")
# Functions that keep their text as a problem, and errors whose text becomes one.
_CALLED = {
    "_note_failure",
    "_replace",
    "_report",
    "_say",
    "_wait",
    "PreflightReport",
    "refuse",
    "refused",
    "rest",
    "Damaged",
    "JvmGone",
    "KafkaRequestError",
    "OutOfMemory",
    "Repartitioned",
    "TableFenced",
    "TransformFails",
    "Unreachable",
}
_ERRORS_OF_SPARK = {"ConfigError", "KworkerError", "OSError", "ValueError"}
_WORDS = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}|[A-Za-z]{5,}( …)?: …")
HOLE = "…"
_VALUES = re.compile(rf"(?:\{{\w+\}}|{HOLE})+")


class ReasonText(NamedTuple):
    """A text in the source; `HOLE` stands for each of its values."""

    file: str
    owner: str
    text: str


def found(*, left_out: bool = False) -> list[ReasonText]:
    """Returns every text that may become a line of the status, or a part of one.

    With `left_out`, returns the texts in `OTHER_TEXTS`, too.
    """
    return [
        ReasonText(file, owner, text)
        for path in sorted(_files())
        for file in [str(path.relative_to(PACKAGE))]
        for owner, node in _owners(file, ast.parse(path.read_text()))
        for text in map(_plain, _texts(node))
        if _WORDS.search(text) and (left_out or text not in OTHER_TEXTS.get(file, {}))
    ]


def _plain(text: str) -> str:
    """Returns a text as a page can quote it: one `HOLE` for adjacent values, and no backticks."""
    return _VALUES.sub(HOLE, text).replace("`", "")


def _files() -> Iterator[Path]:
    for place in map(PACKAGE.joinpath, PLACES):
        for path in place.rglob("*.py") if place.is_dir() else [place]:
            if not str(path.relative_to(PACKAGE)).startswith(tuple(ELSEWHERE)):
                yield path


def _owners(file: str, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields each function that makes texts for the status, and what `FURTHER` names."""
    further = FURTHER.get(file, set())
    for node in tree.body:
        if isinstance(node, ast.Assign) and further & {getattr(t, "id", "") for t in node.targets}:
            yield ast.unparse(node.targets[0]), node
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in further:
            yield node.name, node
        if isinstance(node, ast.FunctionDef) and (node.name in further or _makes(node, file)):
            yield node.name, node


def _makes(function: ast.FunctionDef, file: str) -> bool:
    called = _CALLED | (_ERRORS_OF_SPARK if file.startswith("spark/") else set())
    return bool(_NAMED.search(function.name)) or any(
        _ASSIGNED.search(_target(node)) or _called(node) in called or _is_waited_for(node)
        for node in ast.walk(function)
    )


def _target(node: ast.AST) -> str:
    """Returns the name of the variable, attribute or mapping that is assigned to; "" for none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.Subscript(value=ast.Attribute(attr=name), ctx=ast.Store()):
            return name
    return ""


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _is_waited_for(node: ast.AST) -> bool:
    """Returns True for the exit code of a finding that a start waits for."""
    return isinstance(node, ast.Attribute) and node.attr == "UNREACHABLE"


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="_LOG"))):
            return
        case ast.Expr(value=ast.Constant()):  # a docstring
            return
        case ast.Assign(targets=[ast.Name(id="step")]):  # the line itself says what to do
            return
        case ast.Call(func=ast.Name(id="Finding"), args=[_, problem, *_]):
            yield from _texts(problem)
            return
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(v.value if isinstance(v, ast.Constant) else HOLE for v in values)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _texts(child)
