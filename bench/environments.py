"""An environment for each rival: its own packages, kept in `.bench-rivals` until they change.

What is written by hand runs in kworker's own environment, of which this module tells the versions.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import confluent_kafka

from bench.place import ROOT
from kworker import jars
from kworker.sandbox.redis import find_redis

SOURCES = ROOT / "bench" / "rivals"
FOLDER = ROOT / ".bench-rivals"
JAVA_HEAP = "-Xmx2g"
SHOWN = 500  # characters of what Maven says
# Packages of raw loops, pools, bare tasks and Spark jobs, by the name that they have in a report.
PACKAGES = {
    "confluent-kafka": "confluent-kafka",
    "orjson": "orjson",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
    "redis-py": "redis",
    "uvloop": "uvloop",
}


class Unavailable(Exception):
    """A rival cannot run here; the text says why."""


def python(name: str) -> list[str]:
    """Returns the command of the Python rival `name`, in a virtual environment of its own."""
    requirements, program = SOURCES / f"{name}.txt", SOURCES / f"{name}.py"
    folder = _made(name, [requirements], lambda place: _install(place, requirements))
    return [str(folder / "bin" / "python"), str(program)]


def java(name: str) -> list[str]:
    """Returns the command of the Java rival `name`, built by Maven. Raises Unavailable without."""
    sources = SOURCES / name
    files = sorted(path for path in sources.rglob("*") if path.is_file())
    folder = _made(name, files, lambda place: _build(place, sources))
    home = os.environ.get("JAVA_HOME")
    return [f"{home}/bin/java" if home else "java", JAVA_HEAP, "-jar", str(_jar(folder))]


def _made(name: str, files: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """Returns the folder that `make` filled; it does so again when one of the files changes."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    folder = FOLDER / name
    stamp = folder / "made-of"
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"preparing {name}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (FOLDER / ".gitignore").write_text("*\n")
        make(folder)
        stamp.write_text(digest)
    return folder


def _install(folder: Path, requirements: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet]
    if subprocess.run([*pip, "-r", str(requirements)], check=False).returncode:
        raise Unavailable(f"pip cannot install {requirements.name}")


def _build(folder: Path, sources: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("Maven is not installed")
    build = ["mvn", "-q", "-B", "-f", str(sources / "pom.xml"), f"-DbuildDirectory={folder}/build"]
    # In the user's own repository, descriptions without archives would stay, and stop Spark's Ivy.
    own = f"-Dmaven.repo.local={folder}/repository"
    built = subprocess.run(
        [*build, own, "package"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"Maven cannot build {sources.name}: {built.stdout[-SHOWN:]}")


def _jar(folder: Path) -> Path:
    [jar] = (folder / "build").glob("*.jar")
    return jar


def versions() -> dict[str, str]:
    """Returns what kworker and everything without an environment of its own runs on, by name.

    A package that is not installed is left out. Raises `ConfigError` without Java or a Redis.
    """
    found = {"Python": platform.python_version(), "librdkafka": confluent_kafka.libversion()[0]}
    for name, package in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["delta-spark"] = jars.DELTA.version
    found["Apache Kafka"] = jars.KAFKA.version
    found["Java"] = _said([str(jars.java_of_environment()), "-version"], r'version "([^"]+)"')
    found["Redis"] = _said([str(find_redis()), "--version"], r"v=(\S+)")
    return {name: f"{name} {version}" for name, version in found.items()}


def _said(command: list[str], pattern: str) -> str:
    """Returns the version in what a command prints, or else "of an unknown version"."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    version = re.search(pattern, done.stdout + done.stderr)
    return version[1] if version else "of an unknown version"
