"""The targets of a run: what was wanted, what was reached, and why if that is less."""

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from bench import landing, lifecycle, published, reasons
from bench.markdown import counted

_WHY = (
    "Where a target is not met, this is why. What a record costs is what `make profile` shows at"
    " the same commit, in microseconds of each stage, unless a reason has its figures from"
    " elsewhere:"
)


class Unexplained(LookupError):
    """Targets that are not met have no text in `bench/reasons.py`, or one of another commit."""


class Verdict(NamedTuple):
    """One target: its key in `bench/reasons.py`, and the cells of its line.

    `met` is None if nobody knows, because the other could not be measured.
    """

    target: reasons.Target
    what: str
    wanted: str
    reached: str
    met: bool | None


def verdicts(report: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yields the verdict on each target of the run."""
    yield from _of_contenders(report)
    yield from _of_parts(report)
    for each in report["tables"]["targets"]:
        what = f"the Spark job beside pyspark alone: {each['what']}"
        yield _told(what, f"≥ {each['bound']:.2f} ×", f"{each['ratio']:.2f} ×", met=each["met"])
    for row in (lifecycle.Row(**each) for each in report["lifecycle"]):
        if row.most is not None:
            seconds = median(row.seconds)
            most, reached = f"≤ {row.most:g} s", f"{seconds:.2f} s"
            yield _told(row.what, most, reached, met=seconds <= row.most)
    yield from _of_scale(report)


def explanations(found: Iterable[Verdict], commit: str) -> str:
    """Returns the reasons of the targets that are not met in a run of this commit.

    Raises Unexplained if one has none, or if they were read at another commit.
    """
    all_found = list(found)
    unmet = [verdict for verdict in all_found if verdict.met is False]
    if without := [verdict for verdict in unmet if verdict.target not in reasons.REASONS]:
        raise Unexplained("\n".join(map(_unexplained, without)))
    if not unmet:
        return _none_missed(sum(verdict.met is None for verdict in all_found))
    if commit != reasons.READ_AT:
        raise Unexplained("\n".join(_outdated(unmet, commit)))
    by_reason: dict[str, list[str]] = {}
    for verdict in unmet:
        by_reason.setdefault(reasons.REASONS[verdict.target], []).append(_limit(verdict))
    lines = [f"- **{'; '.join(what)}.** {reason}" for reason, what in by_reason.items()]
    return "\n".join([_WHY, "", *lines])


def _none_missed(unknown: int) -> str:
    if not unknown:
        return "No target was missed."
    return f"No target was missed, as far as is known: of {counted(unknown, 'target')} it is not."


def _unexplained(verdict: Verdict) -> str:
    why = f'why "{_limit(verdict)}" was not reached: `make profile` shows what a record costs'
    return f"say in bench/reasons.py {why}; its key is {verdict.target!r}"


def _outdated(unmet: Iterable[Verdict], commit: str) -> Iterator[str]:
    """Yields the lines of the error about reasons that were read at another commit."""
    yield (
        f"the reasons in bench/reasons.py were read at {reasons.READ_AT}, and the run is of"
        f" {commit}: read these again, correct their figures by `make profile` at {commit}, and"
        f' then set READ_AT to "{commit}"'
    )
    yield from (f"  {verdict.target!r}" for verdict in unmet)


def _limit(verdict: Verdict) -> str:
    return f"{verdict.what}: {verdict.wanted}"


def _of_contenders(report: Mapping[str, Any]) -> Iterator[Verdict]:
    names = {line["name"]: line.get("alone", line["what"]) for line in report["contenders"]}
    for each in report["targets"]:
        name, other, least, ratio = (each[key] for key in ("name", "to", "least", "ratio"))
        what = f"{names[name]}, beside {names[other]}"
        wanted, reached = f"≥ {least:g} ×", _reached(ratio, least)
        yield Verdict((name, other), what, wanted, reached, ratio >= least)


def _reached(ratio: float, least: float) -> str:
    """Returns a ratio with as many digits as show whether it is less than wanted."""
    rounded = round(ratio, 2)
    return f"{ratio:.2f} ×" if (rounded < least) == (ratio < least) else f"{ratio:.4g} ×"


def _of_parts(report: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yields the verdicts of the parts that compare kworker with one other."""
    for landed in (landing.Row(**each) for each in report["landing"]):
        what = f"into a table, beside a Python UDF: {landed.what}"
        wanted, reached = f"≥ {landed.least:g} ×", _reached(landed.ratio, landed.least)
        yield _told(what, wanted, reached, met=landed.ratio >= landed.least)
    for row in (published.Row(**each) for each in report["published"]):
        what = f"Parallel Consumer's table: {row.ordering.lower()}, {counted(row.keys, 'key')}"
        wanted = f"≥ {row.least:g} ×"
        if row.left_out:
            yield _told(what, wanted, "", met=None)
        else:
            yield _told(what, wanted, _reached(row.ratio, row.least), met=row.met)


def _of_scale(report: Mapping[str, Any]) -> Iterator[Verdict]:
    """Yields the verdicts of `make scale`: "records: at 5,000 a record …, and may cost 1.25 ×"."""
    for met, text in report["scale"]["verdicts"]:
        sweep, _, told = text.partition(": ")
        reached, _, limit = told.partition(", and ")
        what = f"scale, {sweep}"
        yield Verdict(f"{what}: {limit}", what, limit, reached, met)


def _told(what: str, wanted: str, reached: str, *, met: bool | None) -> Verdict:
    return Verdict(what, what, wanted, reached, met)
