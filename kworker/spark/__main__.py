"""`python -m kworker.spark`: the Spark job, as the supervisor starts it."""

import argparse
from pathlib import Path

from kworker.spark import process


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kworker.spark", description=__doc__)
    parser.add_argument("--config", type=Path, help="kworker.toml, found as by every command")
    parser.add_argument("--once", action="store_true", help="end when all is in the tables")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _arguments()
    process.run(arguments.config, once=arguments.once)
