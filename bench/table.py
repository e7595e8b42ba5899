"""Prints the benchmark's figures as a table, and a verdict for each target."""

_MIB = 1 << 20


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
    for line in report["contenders"]:
        beside = ", ".join(f"{ratio:.2f} × {other}" for other, ratio in line["ratios"].items())
        memory = f"{line['peak_bytes'] / _MIB:>7,.0f}"
        print(f"{line['what']:<44}{line['records_per_second']:>12,}{memory}   {beside}")
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
