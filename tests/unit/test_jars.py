"""Archives are fetched once, whole, by one process at a time; Java is found or named as missing."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kworker.errors import ConfigError, Unreachable
from kworker.jars import Coordinate, fetch, find_java

THING = Coordinate("org.example", "thing", "1.0")

# Stands in for `java … org.apache.ivy.Main … -retrieve FOLDER/[…] …`: leaves two archives.
FAKE_IVY = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.15" 2025-04-15' >&2; exit 0; fi
echo run >> "$(dirname "$0")/runs"
while [ "$1" != -retrieve ]; do shift; done
folder=$(dirname "$2")
echo "downloading somewhere/thing-1.0.jar ..."
echo thing > "$folder/thing-1.0.jar"
echo other > "$folder/other-2.0.jar"
"""

FAILING_IVY = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.15" 2025-04-15' >&2; exit 0; fi
echo ":: problems summary ::"
echo "		module not found: org.example#thing;1.0"
exit 1
"""

Install = Callable[[str], Path]


def silent(_: str) -> None:
    """No progress wanted."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a script the Java of this test, and gives its folder; the cache is empty."""
    monkeypatch.setenv("KWORKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))

    def write(script: str) -> Path:
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(script)
        java.chmod(0o755)
        return java.parent

    return write


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def test_a_second_fetch_needs_neither_network_nor_java(install: Install) -> None:
    """No start may ever wait for a download."""
    folder = install(FAKE_IVY)
    first = fetch(THING, progress=silent)
    assert [path.name for path in first] == ["other-2.0.jar", "thing-1.0.jar"]
    install("#!/bin/sh\nexit 1\n")
    assert fetch(THING, progress=silent) == first
    assert runs(folder) == 1


def test_progress_names_what_is_fetched(install: Install) -> None:
    """The first start takes half a minute: somebody is watching."""
    install(FAKE_IVY)
    said: list[str] = []
    fetch(THING, progress=said.append)
    assert said[0].startswith("fetching org.example:thing:1.0, once, into ")
    assert said[1:] == ["fetching thing-1.0.jar"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")])
def test_a_set_that_is_not_whole_is_fetched_again(
    install: Install, damage: Callable[[Path], object]
) -> None:
    """Half an archive would be told by Java as a missing class."""
    folder = install(FAKE_IVY)
    thing = fetch(THING, progress=silent)[1]
    damage(thing)
    assert thing in fetch(THING, progress=silent)
    assert (thing.read_text(), runs(folder)) == ("thing\n", 2)


def test_fetches_at_the_same_time_download_once(install: Install) -> None:
    """Ivy's cache stands one writer only."""
    folder = install(FAKE_IVY)
    found: list[list[Path]] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(THING, progress=silent)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert all(paths == found[0] for paths in found)
    assert runs(folder) == 1


def test_a_failed_fetch_shows_ivys_words_and_is_retried(install: Install) -> None:
    """The reader must see whether it is the name or the network."""
    install(FAILING_IVY)
    with pytest.raises(Unreachable, match=r"org\.example:thing:1\.0 (.|\n)*module not found: org"):
        fetch(THING, progress=silent)
    install(FAKE_IVY)
    assert len(fetch(THING, progress=silent)) == 2


def test_an_old_java_is_named_with_its_version(install: Install) -> None:
    """Spark and Kafka would die of an UnsupportedClassVersionError."""
    install("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    with pytest.raises(ConfigError, match=r"bin/java is Java 8, .* need 17"):
        find_java()


def test_a_wrong_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wins over PATH, so that silence would use another Java than the one meant."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        find_java()


def test_a_missing_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thing that a wheel cannot bring."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="install Java 17 or 21, or set JAVA_HOME"):
        find_java()
