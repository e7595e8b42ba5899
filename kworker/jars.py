"""Fetches Java archives once into a cache, with the Ivy in pyspark's folder."""

import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from kworker.distribution import how_to_install
from kworker.errors import ConfigError, Unreachable

JAVA_MIN = 17
FETCH_TIMEOUT_S = 900.0


class Coordinate(NamedTuple):
    """A Maven artefact, as `group:artifact:version`."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


KAFKA = Coordinate("org.apache.kafka", "kafka_2.13", "4.3.1")
# Kafka's own distribution adds the binding of SLF4J to Log4j; its Maven artefact does not.
KAFKA_LOGGING = Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
# Without its dependencies, most of which are Connect's: the broker's archives suffice.
KAFKA_TOOLS = Coordinate("org.apache.kafka", "kafka-tools", "4.3.1")
SPARK_KAFKA = Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0")
DELTA = Coordinate("io.delta", "delta-spark_2.13", "4.0.0")
ICEBERG = Coordinate("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.11.0")


def find_java() -> Path:
    """Returns the `java` of JAVA_HOME, or of PATH if JAVA_HOME is not set.

    Raises `ConfigError` if it is missing or too old.
    """
    java = java_of_environment()
    version = _java_version(java)
    if version < JAVA_MIN:
        raise ConfigError(
            f"{java} is Java {version}, but Kafka and Spark need {JAVA_MIN} or 21:"
            " install one, or point JAVA_HOME at it"
        )
    return java


def java_of_environment() -> Path:
    """Returns the `java` that Spark would run, of any version. Raises `ConfigError` without one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, which has no bin/java: correct or unset it")
        return java
    found = shutil.which("java")
    if found is None:
        raise ConfigError(f"no java on PATH: install Java {JAVA_MIN} or 21, or set JAVA_HOME")
    return Path(found)


def _java_version(java: Path) -> int:
    """Returns the feature release of `java`: 17 for "17.0.15", 8 for "1.8.0_392"."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"{java} cannot be run: {error}; repair it, or point JAVA_HOME at another Java"
        ) from error
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        said = (done.stderr + done.stdout).strip().splitlines()
        raise ConfigError(
            f"{java} -version prints no version: {said[0] if said else 'no output'}; point"
            " JAVA_HOME at another Java"
        )
    return int(found[1])


def fetch(
    coordinate: Coordinate, *, progress: Callable[[str], None], alone: bool = False
) -> list[Path]:
    """Returns the archives of `coordinate` and its dependencies, from the cache or the network.

    With `alone`, leaves out the dependencies. If all archives are in the cache, needs neither the
    network nor Java; if not, blocks while Ivy downloads them. Several processes may call this at
    once. Raises `Unreachable` if the archives cannot be fetched, and `ConfigError` if pyspark is
    missing, or Java is missing or too old.
    """
    folder = cache_folder() / "jars" / f"{coordinate.artifact}-{coordinate.version}"
    finished = _finished(folder)
    if finished:
        return finished
    folder.mkdir(parents=True, exist_ok=True)
    with _cache_lock(cache_folder() / "lock", progress):
        return _finished(folder) or _download(coordinate, folder, progress, alone=alone)


def cache_folder() -> Path:
    """Returns the folder of fetched archives, an absolute path."""
    own = os.environ.get("KWORKER_CACHE")
    if own:
        return Path(own).absolute()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "kworker"


def _finished(folder: Path) -> list[Path]:
    """Returns the archives in the manifest; none if it is missing or an archive is incomplete."""
    try:
        sizes: dict[str, int] = json.loads((folder / "manifest.json").read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, ValueError):
        return []
    return [folder / name for name in sizes] if whole else []


@contextmanager
def _cache_lock(lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of Ivy's cache, which allows one writer at a time."""
    with lock.open("w") as file:
        deadline = time.monotonic() + FETCH_TIMEOUT_S
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                raise Unreachable(
                    "another process has been downloading Java archives for"
                    f" {FETCH_TIMEOUT_S:.0f} s (it holds {lock}); end it, or try again later"
                )
            progress("another process is fetching; waiting for it")
            time.sleep(1.0)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _download(
    coordinate: Coordinate, folder: Path, progress: Callable[[str], None], *, alone: bool
) -> list[Path]:
    progress(f"fetching {coordinate}, once, into {folder}")
    command = _ivy_command(coordinate, folder) + (["-notransitive"] if alone else [])
    _run_ivy(command, coordinate, progress)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.jar"))}
    if not sizes:
        raise Unreachable(f"Ivy found no archive of {coordinate}: check its spelling")
    # Written last, and replaced as a whole: a manifest means that the set is complete.
    draft = folder / "manifest.json.part"
    draft.write_text(json.dumps(sizes, indent=1))
    draft.replace(folder / "manifest.json")
    return [folder / name for name in sizes]


def _ivy_command(coordinate: Coordinate, folder: Path) -> list[str]:
    home = cache_folder() / "ivy"
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "settings.xml"
    # The default settings have more repositories, which may not answer.
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/>'
        f"<caches defaultCacheDir={quoteattr(str(home / 'cache'))}/>"
        '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
    )
    return [
        *(str(find_java()), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"-Divy.default.ivy.user.dir={home}", "-cp", str(_ivy_archive())),
        *("org.apache.ivy.Main", "-settings", str(settings), "-dependency", *coordinate),
        *("-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-confs", "default"),
    ]


def _ivy_archive() -> Path:
    # Found, not imported: only kworker.spark imports pyspark.
    spec = importlib.util.find_spec("pyspark")
    places = (spec and spec.submodule_search_locations) or []
    for place in places:
        for archive in Path(place, "jars").glob("ivy-*.jar"):
            return archive
    raise ConfigError(
        "pyspark is not installed; kworker needs its downloader (Ivy) to fetch Java archives;"
        f" install it with: {how_to_install('spark')}"
    )


def _run_ivy(command: list[str], coordinate: Coordinate, progress: Callable[[str], None]) -> None:
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ivy:
        watchdog = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        watchdog.start()
        try:
            for line in ivy.stdout or ():
                last.append(line)
                if line.startswith("downloading "):
                    progress("fetching " + line.split()[1].rpartition("/")[2])
            code = ivy.wait()
        finally:
            watchdog.cancel()
            ivy.kill()
    if code:
        said = "".join(f"\n  {line}" for line in _meaningful(last))
        raise Unreachable(
            f"{coordinate} could not be downloaded; last output of the downloader (Ivy):{said}"
        )


def _meaningful(lines: Iterable[str]) -> list[str]:
    """Returns the last lines of Ivy's output that hold text: many lines only draw a frame."""
    said = (line.strip(" \t\n:|=-.") for line in lines if not line.startswith("downloading "))
    return [line for line in dict.fromkeys(said) if line and "USE VERBOSE" not in line][-8:]
