"""A status document, as the supervisor makes it."""

from typing import Any


def worker(slot: int, **changed: Any) -> dict[str, Any]:
    return {
        "slot": slot,
        "pid": 100 + slot,
        "phase": "running",
        "partitions": [["orders", slot]],
        "in_hand": 3,
        "in_flight": 2,
        "oldest_s": 0.5,
        "heartbeat_age_s": 0.01,
        "rate": 40.0,
        "handlers": 8,
        "utilisation": 0.25,
        "rss_bytes": 60 << 20,
        "restarts": 1,
        "replacements": 0,
        "reasons": [],
        **changed,
    }


def document(**changed: Any) -> dict[str, Any]:
    counters = ("consumed", "done", "failed", "retried", "dead", "duplicates", "dropped")
    others = ("unguarded", "remembered", "maps_ignored", "published", "commits", "rebalances")
    return {
        "name": "orders",
        "instance": "test",
        "version": "0.1.0",
        "state": "running",
        "joined": True,
        "reasons": [],
        "paused": [],
        "pid": 99,
        "uptime_s": 12.5,
        "workers": [worker(0), worker(1)],
        "held": 4,
        "suspects": 0,
        "counters": {name: number for number, name in enumerate((*counters, *others), 10)},
        "dead_letters": {"rejected": 4, "exhausted": 10},
        "deaths": {"SIGKILL": 2, "exit code 1": 1},
        "replacements": {"reload": 2, "memory": 1},
        "last_dead_letters": [
            {
                "record": "orders:3:17",
                "reason": "rejected",
                "error": "no",
                "at_ms": 1_790_000_000_000,
            }
        ],
        "runs": {"bounds_s": [0.01, 0.1], "counts": [5, 2, 1], "sum_s": 0.75},
        "waits": {"bounds_s": [0.01, 0.1], "counts": [3, 4, 2], "sum_s": 1.5},
        "transactions": {
            "committed": {"count": 20, "sum_s": 2.5},
            "aborted": {"count": 1, "sum_s": 0.5},
        },
        "redis_calls": {
            "answered": {"count": 40, "sum_s": 0.02},
            "failed": {"count": 2, "sum_s": 4.0},
        },
        "rebalancing_s": 1.25,
        "lag": {
            "records": 7,
            "unfinished": 9,
            "age_s": 1.5,
            "topics": [
                {"topic": "orders", "partitions": 4, "behind": 8},
                {"topic": "orders.requeue", "partitions": 4, "behind": 1},
            ],
        },
        "delays": [{"delay": "5s", "waiting": 2, "next_due_ms": 1_790_000_000_500}],
        "delay": {"pid": 98, "heartbeat_age_s": 0.2},
        "spark": {"state": "off", "pid": None, "reason": "", "tables": []},
        "console": {"state": "running", "listen": "127.0.0.1:8321", "pid": 97, "reason": ""},
        **changed,
    }
