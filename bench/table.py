"""Prints the benchmark's figures as a table, a verdict for each target, and what took the time."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from bench import latency

_MIB = 1 << 20
_LONGEST = 5  # contenders whose time is told


def show(report: dict) -> bool:
    """Prints the table and the verdicts; returns True if every target is met."""
    size = report["size"]
    print(
        f"\nmedian of {size['rounds']} rounds, or of {size['untargeted_rounds']} without a target,"
        f" up to {size['records']:,} records of 200 bytes",
        end="",
    )
    print(f" ({size['waiting']:,} where each takes 10 ms)\n")
    print(f"{'':<44}{'records/s':>12}{'MiB':>7}   beside")
    holders = latency.holders(report.get("latency", ()))
    for line in report["contenders"]:
        beside = ", ".join(f"{ratio:.2f} × {other}" for other, ratio in line["ratios"].items())
        memory = f"{line['peak_bytes'] / _MIB:>7,.0f}"
        print(f"{line['what']:<44}{line['records_per_second']:>12,}{memory}   {beside}")
        if notes := "; ".join(_notes(line, holders)):
            print(f"    {notes}")
    print(f"\nof {', '.join(sorted(report['versions'].values()))}" if report["versions"] else "")
    for rival, why in report["absent"].items():
        print(f"left out: {rival}: {why}")
    for target in report["targets"]:
        met = "PASS" if target["ratio"] >= target["least"] else "FAIL"
        print(
            f"{met}  {target['name']} is {target['ratio']:.3f} × {target['to']},"
            f" and must be at least {target['least']:g}"
        )
    return all(target["ratio"] >= target["least"] for target in report["targets"])


def _notes(line: dict, holders: Mapping[str, bool]) -> Iterator[str]:
    """Yields what a reader must know of a contender beside its figures."""
    if line["probe"] in holders:
        yield "others wait for a slow key" if holders[line["probe"]] else "no other waits"
    if line["lacks"]:
        yield f"it lacks {line['lacks']}"


def minutes(seconds: Mapping[str, float], names: Iterable[str]) -> str:
    """The minutes that all of these have taken."""
    return f"{sum(seconds.get(name, 0.0) for name in names) / 60:.1f} min"


def spent(seconds: Mapping[str, float], parts: Collection[str]) -> str:
    """A line on what took the time, with the runs that this one goes on from."""
    contenders = sorted(seconds.keys() - set(parts), key=lambda name: -seconds[name])
    longest = ", ".join(f"{name} {minutes(seconds, [name])}" for name in contenders[:_LONGEST])
    told = [f"{name} {minutes(seconds, [name])}" for name in parts if name in seconds]
    if contenders:
        told.insert(0, f"contenders {minutes(seconds, contenders)} (the longest: {longest})")
    return f"measured for: {', '.join(told)}"
