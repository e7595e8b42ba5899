"""A report of the benchmark, to make documents of."""

import json
from typing import Any

from bench import contenders, landing, latency, lifecycle, published, run, scale, tables
from bench.scale import ScalePoint

COMMIT = "abc1234"


def report() -> dict[str, Any]:
    """As the two benchmarks write it, each figure another; the first target is not met."""
    lines = [
        {
            "name": each.name,
            "what": each.what,
            "alone": each.alone,
            "records_per_second": 10_000 + number,
            "rounds": [10_000 + number, 9_000, 11_000],
            "peak_bytes": 100 << 20,
            "stolen": 0.004,
            "lacks": "order" if each.rival == "aiokafka" else "",
            "probe": {"quix": "held", "kworker": "free"}.get(each.name, ""),
            "ratios": dict.fromkeys(each.beside, 1.25),
        }
        for number, each in enumerate(contenders.CONTENDERS)
    ]
    targets = [
        {"name": name, "to": other, "least": least, "ratio": least + (0.1 if number else -0.1)}
        for number, (name, other, least) in enumerate(contenders.TARGETS)
    ]
    interval = {"commit_interval": "50ms", "records_per_second": 1, "median_ms": 5, "p99_ms": 6}
    interval |= {"entries_per_second": 9, "repeated": 1}
    figures = [tables.Figures(15.0, 5.0, 50_000)._asdict()]
    return {
        "commit": COMMIT,
        "cpus": 2,
        "size": json.loads(json.dumps(vars(run.FULL))),
        "versions": {"quix": "Quix Streams 3", "parallel-consumer": "Parallel Consumer 0.5"},
        "absent": {"celery": "no broker"},
        "seconds": {"kworker": 200.0, "latency": 100.0},
        "contenders": lines,
        "targets": targets,
        "latency": [
            latency.Row("held", 5.0, 20.0, 40.0, 990.0, beside_p99_ms=980.0)._asdict(),
            latency.Row("free", 5.0, 20.0, 40.0, 41.0)._asdict(),
            latency.Row("asked", 9.0, 20.0, 40.0, 999.0, only_asked=True)._asdict(),
        ],
        "lifecycle": [lifecycle.Row(lifecycle.START, [2.2, 2.0, 2.1], 3.0)._asdict()],
        "intervals": [
            {"guarantee": "at least once", **interval},
            {"guarantee": "exactly once", **interval, "requests_per_second": 12.3},
        ],
        "published": [published.Row("KEY", 1, [24.0], [25.0], stolen=0.013)._asdict()],
        "landing": [landing.Row("JSON decoded", [200.0], [100.0], 1.5)._asdict()],
        "tables": {
            "rounds": {"pyspark": figures, "kworker": figures},
            "targets": [tables._target(what, [1.125])._asdict() for what in tables.BOUNDS],
        },
        "scale": _scale_report(),
    }


def _scale_report() -> dict[str, Any]:
    point = ScalePoint(1_000, 1_000, 0.003, {"worker": 120_000_000}, 0.0)._asdict()
    return {
        "commit": COMMIT,
        "size": scale.FULL_SIZE,
        "points": {name: [point, point | {"size": 5_000}] for name in scale.FULL},
        "verdicts": [
            [True, "records: at 5,000 a record costs 1.02 × the least, and may cost 1.25 ×"],
            [True, "records: a worker takes up to 120 MB, and may take 150 MB"],
        ],
        "left_out": ["dead 1,000: it would take long"],
        "assumptions": ["a worker on each core but 2"],
        "computed": [{"hosts": 100, "workers": 6_200, "no_op": 2e9, "waiting": 3.9e7}],
    }
