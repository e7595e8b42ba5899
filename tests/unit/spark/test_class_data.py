"""Which file of classes a JVM is started with, and what becomes of the one that it writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kworker.spark.session import class_data, opener
from kworker.spark.session.class_data import KEPT, ClassData
from kworker.spark.session.opener import SessionOpener
from kworker.spark.stop import StopRequest

Make = Callable[..., ClassData]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Of a Java, a Spark and an archive that are a few small files."""
    for name in ("bin/java", "lib/modules", "lib/server/classes.jsa", "jars/spark.jar", "a.jar"):
        file = tmp_path / "java" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (tmp_path / "java" / "bin" / "java").chmod(0o755)
    monkeypatch.setattr(class_data, "spark_home", lambda: tmp_path / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("KWORKER_CACHE", str(tmp_path / "cache"))
    for name in class_data._ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)

    def made(**conf: str) -> ClassData:
        """Of a second run."""
        told = {name.replace("_", "."): value for name, value in conf.items()}
        ClassData(told, [tmp_path / "java" / "a.jar"]).option(learn=True)
        return ClassData(told, [tmp_path / "java" / "a.jar"])

    return made


def draft_of(classes: ClassData) -> Path:
    """Where the JVM is told to write; as it does when it ends."""
    option = classes.option(learn=True)
    path = Path(option.partition("ArchiveClassesAtExit=")[2].partition('"')[0])
    assert path.name
    return path


def learn(classes: ClassData) -> None:
    draft_of(classes).write_text("classes")
    classes.settle(awaited=True, ended=True)


def test_classes_written_by_one_jvm_are_read_by_the_next(make: Make, tmp_path: Path) -> None:
    learn(make())
    classes = make()
    [file] = (tmp_path / "cache" / "classes").iterdir()
    assert classes.option(learn=True) == f'"-XX:SharedArchiveFile={file}" -Xlog:cds*=off'
    assert not classes.learning


def test_a_first_run_learns_nothing(make: Make, tmp_path: Path) -> None:
    """In a container it would do so each time, for nothing."""
    archives = [tmp_path / "java" / "a.jar"]
    assert ClassData({}, archives).option(learn=True) == ""
    assert draft_of(ClassData({}, archives))


def test_a_job_that_goes_on_learns_nothing(make: Make) -> None:
    """It would stop ten seconds later than it is told to."""
    assert make().option(learn=False) == ""


@pytest.mark.parametrize("name", ["lib/modules", "jars/spark.jar", "a.jar"])
def test_a_changed_java_spark_or_archive_gets_its_own_file(
    make: Make, tmp_path: Path, name: str
) -> None:
    learn(make())
    os.utime(tmp_path / "java" / name, (1, 1))
    assert "ArchiveClassesAtExit" in make().option(learn=True)


def test_changed_options_or_heap_get_their_own_file(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(make())
    assert "ArchiveClassesAtExit" in make(spark_driver_memory="40g").option(learn=True)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    assert "ArchiveClassesAtExit" in make().option(learn=True)


@pytest.mark.parametrize(
    "own",
    [
        "-Xshare:off",
        "-XX:SharedArchiveFile=/x",
        "-XX:-UseSharedSpaces",
        "-javaagent:/opt/agent.jar",
        "-agentlib:jdwp=transport=dt_socket",
    ],
)
def test_user_class_data_options_are_respected(make: Make, own: str) -> None:
    assert make(spark_driver_extraJavaOptions=own).option(learn=True) == ""


@pytest.mark.parametrize("missing", ["bin/java", "lib/server/classes.jsa"])
def test_a_missing_base_archive_disables_class_data(
    make: Make, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "java" / missing).unlink()
    assert make().option(learn=True) == ""


def test_folders_on_the_class_path_cannot_be_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert make().option(learn=True) == ""


def test_an_interrupted_draft_is_written_at_the_next_end(make: Make, tmp_path: Path) -> None:
    classes = make()
    draft_of(classes).write_text("half of")
    classes.settle(awaited=False, ended=False)
    assert not [path for path in (tmp_path / "cache" / "classes").iterdir() if path.stat().st_size]
    assert draft_of(make())


@pytest.mark.parametrize(("text", "ended"), [("half of", False), (None, True)])
def test_a_jvm_that_failed_is_not_asked_again(
    make: Make, tmp_path: Path, text: str | None, ended: bool
) -> None:
    classes = make()
    draft = draft_of(classes)
    if text is not None:
        draft.write_text(text)
    classes.settle(awaited=True, ended=ended)
    assert make().option(learn=True) == ""
    [file] = (tmp_path / "cache" / "classes").glob("*.failed")
    os.utime(file, (1, 1))
    assert draft_of(make(spark_driver_memory="1g"))
    assert draft_of(make())


def test_a_file_in_use_is_not_evicted(make: Make) -> None:
    for number in range(KEPT):
        learn(make(spark_driver_memory=f"{number}g"))
    assert make().option(learn=True) == ""
    kept = make(spark_driver_memory="0g").option(learn=False).split("=")[1].split('"')[0]
    os.utime(kept, (1, 1))
    learn(make())
    there = [number for number in range(KEPT) if _is_kept(make(spark_driver_memory=f"{number}g"))]
    assert there == list(range(1, KEPT))
    assert _is_kept(make())


def test_a_draft_of_a_killed_process_is_removed(make: Make, tmp_path: Path) -> None:
    left = draft_of(make())
    left.write_text("half of")
    os.utime(left, (1, 1))
    learn(make())
    assert not left.exists()


def _is_kept(classes: ClassData) -> bool:
    return "SharedArchiveFile" in classes.option(learn=False)


@pytest.mark.parametrize("file", ["spark-defaults.conf", "spark-env.sh"])
def test_options_in_spark_s_own_files_are_given_ones(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    name = "spark.driver.defaultJavaOptions" if file.endswith("conf") else "SPARK_SUBMIT_OPTS"
    (tmp_path / file).write_text(f"{name} -XX:+UseG1GC\nother -XX:+UseZGC\n")
    assert class_data.given_options({}).endswith("-XX:+UseG1GC")


def test_a_folder_of_settings_is_on_the_class_path(make: Make, tmp_path: Path) -> None:
    (tmp_path / "java" / "conf").mkdir()
    assert draft_of(make())
    (tmp_path / "java" / "conf" / "spark-defaults.conf").write_text("")
    assert make().option(learn=True) == ""


def test_an_unreadable_cache_is_not_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = make()

    def denied(_path: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", denied)
    assert classes.option(learn=False) == classes.option(learn=True) == ""


class Started:
    """An opener whose JVM refuses options, or a session that fails while the JVM lives."""

    def __init__(self, classes: ClassData, monkeypatch: pytest.MonkeyPatch, *, lives: bool) -> None:
        self._config = self._lease = self.missing = None
        self._classes = classes
        self._stop = StopRequest()
        self.asked: list[tuple[object, ...]] = []
        self.ends = 0
        monkeypatch.setattr(opener, "open_session", self.open_session)
        monkeypatch.setattr(opener, "has_live_jvm", lambda: lives)
        monkeypatch.setattr(opener, "end_jvm", self.end_jvm)

    def open_session(self, *arguments: object) -> str:
        self.asked.append(arguments[4:])
        if any(arguments[4:]):
            raise OSError("Java gateway process exited")
        return "session"

    def end_jvm(self, _may_wait: Callable[[float], bool]) -> bool:
        self.ends += 1
        return True


def test_a_jvm_that_does_not_start_with_classes_starts_without(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(make())
    started: Any = Started(make(), monkeypatch, lives=False)
    assert SessionOpener._open(started, [], learn=True) == "session"
    assert [bool(options) for options in started.asked] == [True, False]
    assert make().option(learn=True) == ""  # nor is it tried at each start


def test_a_jvm_that_the_stop_ended_does_not_lose_its_classes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the whole process group, as of `timeout`, ends the JVM while it starts."""
    learn(make())
    started: Any = Started(make(), monkeypatch, lives=False)
    started._stop.made = True
    with pytest.raises(OSError, match="gateway"):
        SessionOpener._open(started, [], learn=True)
    assert make().option(learn=True).startswith('"-XX:SharedArchiveFile=')


def test_a_session_that_fails_has_its_jvm_write_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: Any = Started(make(), monkeypatch, lives=True)
    with pytest.raises(OSError, match="gateway"):
        SessionOpener._open(started, [], learn=True)
    assert started.ends == 1
    assert draft_of(make())
