"""The parts of `docs/performance.md` that are made of a run's figures, by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench import contenders, landing, latency, lifecycle, published, tables
from bench.markdown import cell, counted, rate, table
from bench.verdicts import explanations, verdicts

Figures = Mapping[str, Any]

_MB, _MIB = 1_000_000, 1 << 20
_UNKNOWN = "—"
_MET = {True: "yes", False: "**no**", None: "not known"}


def _size(report: Figures) -> str:
    size = report["size"]
    return (
        f"Measured at commit `{report['commit']}` with {report['cpus']} CPUs, which the broker"
        f" shares.{''.join(_minutes(report))} Before [tables](#from-a-topic-into-a-table), a figure"
        f" is the median of {counted(size['rounds'], 'round')}, or of"
        f" {size['untargeted_rounds']:,} where no ratio is wanted, and a ratio is the median of the"
        f" ratios of the rounds. From there on, there are up to"
        f" {counted(size['part_rounds'], 'round')}. A contender reads up to {size['records']:,}"
        f" records, and fewer if it is slow.{''.join(_noise(report))}"
    )


def _minutes(report: Figures) -> Iterator[str]:
    """Yields a sentence on the time of all measurements of `make bench`, if the report tells it."""
    if seconds := report.get("seconds"):
        minutes = counted(round(sum(seconds.values()) / 60), "minute")
        yield f" The measurements, repeated ones included, took {minutes}."


def _noise(report: Figures) -> Iterator[str]:
    """Yields sentences on what disturbed the figures, as far as the report tells it."""
    rounds = [line["rounds"] for line in report["contenders"]]
    moved = max((1 - min(rates) / max(rates) for rates in rounds), default=0.0)
    yield f" Of one contender, the slowest round is up to {100 * moved:.0f} % below the fastest."
    if shares := list(_stolen(report)):
        yield (
            f" At most {100 * max(shares):.1f} % of the CPU went to other virtual machines in any"
            " measurement that counts."
        )
    if left_out := report.get("repeats", {}).get("left_out"):
        yield (
            f" {counted(left_out, 'measurement')} that others disturbed"
            f" {'was' if left_out == 1 else 'were'} not repeated: repeats may take a minute and 5 %"
            " of the time."
        )
    if kept := report.get("loop_us", {}).get("kept"):
        slower = [each / report["loop_us"]["best"] for each in sorted(kept)]
        yield (
            " A loop of Python that never changes took"
            f" {slower[0]:.2f} to {slower[-1]:.2f} times its least CPU time during these, in the"
            f" middle {median(slower):.2f} times, or {median(kept):.0f} µs: by so much the CPUs"
            " themselves were slower."
        )


def _stolen(found: Any, *, within: bool = False) -> Iterator[float]:
    """Yields each share of the CPU that others took, in whatever part of the report."""
    match found:
        case dict():
            for name, value in found.items():
                yield from _stolen(value, within=within or name == "stolen")
        case list():
            for value in found:
                yield from _stolen(value, within=within)
        case int() | float() if within:
            yield found


def _versions(report: Figures) -> str:
    versions = [f"- {version}" for version in sorted(set(report["versions"].values()))]
    absent = [f"- left out: {name}: {why}" for name, why in report["absent"].items()]
    return "\n".join(versions + absent)


def _rows_of(group: Sequence[contenders.Contender]) -> Callable[[Figures], str]:
    """The block for contenders that are compared with each other."""

    def block(report: Figures) -> str:
        found = {line["name"]: line for line in report["contenders"]}
        lines = [found[each.name] for each in group if each.name in found]
        return "\n\n".join(filter(None, (_compared(report, lines), _lacking(lines))))

    return block


def _compared(report: Figures, lines: Sequence[Figures]) -> str:
    ratios: dict[str, list[str]] = {line["name"]: [] for line in lines}
    for line in lines:
        for other, ratio in line["ratios"].items():
            if _is_ours(line) or _family(line["name"]) == _family(other):
                ratios.setdefault(other, []).append(f"{ratio:.2f} × ({line['what']})")
    held = {row["name"]: _yes_or_no(latency.Row(**row).holds_others) for row in report["latency"]}
    rows = [
        [
            f"**{line['what']}**" if _is_ours(line) else line["what"],
            rate(line["records_per_second"]),
            f"{rate(min(line['rounds']))} … {rate(max(line['rounds']))}",
            f"{line['peak_bytes'] / _MIB:,.0f}",
            held.get(line.get("probe", ""), _UNKNOWN),
            "<br>".join(ratios[line["name"]]),
        ]
        for line in lines
    ]
    slow = "others wait for a slow key"
    return table(["", "records/s", "rounds", "MiB", slow, "beside it"], rows)


def _lacking(lines: Sequence[Figures]) -> str:
    """The notes on what others do not have, one for all that lack the same; or nothing."""
    by_text: dict[str, list[str]] = {}
    for line in lines:
        if text := line.get("lacks", ""):
            by_text.setdefault(text, []).append(line["what"])
    return "\n".join(f"- *{'; '.join(what)}*: without {text}" for text, what in by_text.items())


def _is_ours(line: Figures) -> bool:
    return _family(line["name"]) == "kworker"


def _family(name: str) -> str:
    """The first word of a contender's name: what it is, however it is used."""
    return name.partition("-")[0]


def _yes_or_no(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _latency(report: Figures) -> str:
    rows = []
    for row in (latency.Row(**each) for each in report["latency"]):
        if row.only_asked:
            continue  # for the tables of contenders
        delays = (row.median_ms, row.p99_ms, row.worst_ms, row.beside_p99_ms, row.beside_ms)
        cells = (_UNKNOWN if delay is None else f"{delay:,.0f} ms" for delay in delays)
        rows.append([row.name, *cells, _yes_or_no(row.holds_others)])
    slow = ("99 % beside a record of 1 s", "worst beside it", "others wait for it")
    return table(["", "median", "99 %", "worst", *slow], rows)


def _lifecycle(report: Figures) -> str:
    rows = []
    for each in report["lifecycle"]:
        row = lifecycle.Row(**each)
        rounds = f"{min(row.seconds):.2f} … {max(row.seconds):.2f} s"
        rows.append([row.what, f"{median(row.seconds):.2f} s", rounds])
    return table(["", "median", "rounds"], rows)


def _intervals(report: Figures) -> str:
    rows = [
        [
            row["guarantee"],
            row["commit_interval"],
            rate(row["records_per_second"]),
            f"{row['median_ms']:,.0f} ms",
            f"{row['p99_ms']:,.0f} ms",
            _requests(row),
            f"{row['entries_per_second']:,.0f}",
            f"{row['repeated']:,.0f}",
        ]
        for row in report["intervals"]
    ]
    head = ["", "`commit_interval`", "records/s", "median", "99 %"]
    return table([*head, "requests/s", "entries/s", "came twice"], rows)


def _requests(row: Figures) -> str:
    per_second = row.get("requests_per_second")
    return _UNKNOWN if per_second is None else rate(per_second)


def _published(report: Figures) -> str:
    rows = []
    for each in report["published"]:
        row = published.Row(**each)
        case = f"{row.ordering.lower()}, {counted(row.keys, 'key')}"
        if row.left_out:
            rows.append([case, _UNKNOWN, _UNKNOWN, f"left out: {cell(row.left_out)}"])
        else:
            seconds = [f"{median(found):.2f} s" for found in (row.theirs_s, row.ours_s)]
            rows.append([case, *seconds, f"{row.ratio:.2f} × as fast"])
    return table(["", "Parallel Consumer", "kworker", ""], rows)


def _landing(report: Figures) -> str:
    rows = []
    for each in report["landing"]:
        row = landing.Row(**each)
        rates = [rate(median(found)) for found in (row.theirs, row.ours)]
        rows.append([row.what, *rates, f"{row.ratio:.2f} ×"])
    return table(["rows/s", "Python UDF", "kworker", ""], rows)


def _tables(report: Figures) -> str:
    rows = []
    for name, rounds in report["tables"]["rounds"].items():
        figures = [tables.Figures(**each) for each in rounds]
        cold, empty = (median(getattr(f, w) for f in figures) for w in ("cold_s", "empty_s"))
        warm = rate(median(each.warm for each in figures))
        rows.append([name, f"{cold:.1f} s", f"{empty:.1f} s", warm])
    ratios = {each["what"]: f"{each['ratio']:.2f} ×" for each in report["tables"]["targets"]}
    rows.append(
        ["", *(ratios[what] for what in ("a backlog, cold", "nothing new", "warm batches"))]
    )
    return table(["", "a backlog, cold", "nothing new", "warm batches, results/s"], rows)


def _scale(report: Figures) -> str:
    rows = [
        [
            sweep,
            f"{point['size']:,}",
            f"{1e6 * point['seconds'] / point['records']:.2f} µs",
            *(f"{size / _MB:,.0f} MB" for size in point["peaks"].values()),
        ]
        for sweep, points in report["scale"]["points"].items()
        for point in points
    ]
    shown = table(["", "point", "a record", "worker", "delay", "supervisor"], rows)
    return _with_list(shown, "Left out:", report["scale"].get("left_out", ()))


def _computed(report: Figures) -> str:
    rows = [
        [
            f"{row['hosts']:,}",
            f"{row['workers']:,}",
            rate(row["no_op"]),
            rate(row["waiting"]),
        ]
        for row in report["scale"]["computed"]
    ]
    shown = table(["hosts", "workers", "no-op, records/s", "10 ms in 64 threads"], rows)
    return _with_list(shown, "It assumes:", report["scale"].get("assumptions", ()))


def _with_list(shown: str, title: str, texts: Sequence[str]) -> str:
    listed = "\n".join(f"- {text}" for text in texts)
    return f"{shown}\n\n{title}\n\n{listed}" if texts else shown


def _targets(report: Figures) -> str:
    rows = [[each.what, each.wanted, each.reached, _MET[each.met]] for each in verdicts(report)]
    return table(["", "wanted", "reached", "met"], rows)


BLOCKS: dict[str, Callable[[Figures], str]] = {
    "size": _size,
    "versions": _versions,
    "no-op": _rows_of(contenders.NO_OP),
    "results": _rows_of(contenders.RESULTS),
    "threads": _rows_of(contenders.WAITING),
    "tasks": _rows_of(contenders.TASKS_WAITING),
    "disturbances": _rows_of(contenders.DISTURBANCES),
    "claims": _rows_of(contenders.CLAIMS),
    "latency": _latency,
    "lifecycle": _lifecycle,
    "intervals": _intervals,
    "published": _published,
    "landing": _landing,
    "tables": _tables,
    "scale": _scale,
    "computed": _computed,
    "targets": _targets,
    "reasons": lambda report: explanations(verdicts(report), report["commit"]),
}
