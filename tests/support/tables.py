"""What stands in a service's tables, read by one Spark for the whole session."""

import json
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).parents[2]
END_TIMEOUT_S = 60.0

Rows = list[dict[str, Any]]


def spark_table(name: str, **keys: str | bool | list[str]) -> str:
    """A table of `[spark]` in TOML; its path is `data/<name>`, unless the keys have another."""
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    path = "" if "path" in keys else f'path = "data/{name}"\n'
    return f'[[spark.tables]]\nname = "{name}"\n{path}{"".join(lines)}'


def spark_config(name: str, spark: str) -> str:
    """A service in TOML whose brokers nobody asks; `spark` is its `[spark]` and the tables."""
    return f"""
name = "{name}"
handler = "m:f"
state_dir = "state"
[source]
topics = ["none"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
{spark}"""


# Tables of every format that tests read, so that Spark loads what they need.
CONFIG = spark_config("reader", spark_table("delta") + spark_table("iceberg", format="iceberg"))


class Reader:
    """`tests.support.read_tables` as a process of its own, apart from the jobs that write.

    It starts with this object, so that its JVM is there when the first job has written.
    """

    def __init__(self, folder: Path) -> None:
        self._turn = Lock()  # stories that run beside each other ask one after the other
        self._config = folder / "kworker.toml"
        self._errors = folder / "stderr"
        self._config.write_text(CONFIG)
        (folder / "state" / "spark").mkdir(parents=True)
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.read_tables", str(self._config)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def rows(self, config: Path) -> dict[str, Rows]:
        """The rows of each table of a configuration; blocks while Spark reads."""
        found: dict[str, Rows] = self._ask(config=str(config))
        return found

    def shows(self, code: str) -> str:
        """What Python code prints that uses the session as `spark`."""
        return str(self._ask(code=code))

    def _ask(self, **question: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        with self._turn:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, self._errors.read_text()
        return json.loads(answer)

    def close(self) -> None:
        """Its JVM ends with it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)
