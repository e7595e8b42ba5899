"""The Containerfile, which no test can build: what it copies, and what kworker needs."""

import json
import re
from configparser import ConfigParser
from pathlib import Path

from kworker import jars
from kworker.config.toml_file import SYSTEM_FILE
from tests.support.command_line import parse
from tests.support.containerfile import environment, rests, stages

ROOT = Path(__file__).parents[3]
FILE = ROOT / "etc" / "Containerfile"
STAGES = stages(FILE.read_text())
SERVICE, SPARK = STAGES["service"], STAGES["spark"]


def test_its_python_is_one_that_kworker_is_tested_with() -> None:
    [base] = rests(STAGES[""], "ARG")
    version = re.fullmatch(r"BASE=docker\.io/library/python:(\d+\.\d+)-slim-\w+", base)
    assert version
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg")
    assert f":: {version[1]}" in declared["metadata"]["classifiers"]


def test_all_that_the_package_is_built_from_is_copied() -> None:
    copied = {source for rest in rests(STAGES["build"], "COPY") for source in rest.split()[:-1]}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg")
    described = declared["metadata"]["long_description"].removeprefix("file: ")
    [constraints] = set(re.findall(r"-c (\S+\.txt)", FILE.read_text()))
    needed = {"setup.cfg", "pyproject.toml", "LICENSE", "kworker", described, constraints}
    assert copied == needed


def test_what_one_stage_takes_another_has_made() -> None:
    made = {stage: re.findall(r"/opt/kworker\b", str(steps)) for stage, steps in STAGES.items()}
    for stage in (SERVICE, SPARK):
        for rest in rests(stage, "COPY"):
            source, path, _ = rest.split()
            assert path in made[source.removeprefix("--from=")]


def test_the_supervisor_is_process_1_as_nobody_in_particular() -> None:
    """The form without a shell: a shell as process 1 keeps SIGTERM to itself."""
    assert json.loads(rests(SERVICE, "ENTRYPOINT")[0]) == ["kworker"]
    assert rests(SERVICE, "STOPSIGNAL") == ["SIGTERM"]
    for stage in (SERVICE, SPARK):
        assert rests(stage, "USER")[-1] == "10001:10001"
        parse(json.loads(rests(stage, "CMD")[0]) if rests(stage, "CMD") else ["start"])


def test_a_configuration_and_handlers_of_app_are_found() -> None:
    """The one by the working folder, the others by the path of modules."""
    assert rests(SERVICE, "WORKDIR") == ["/app"] == [environment(SERVICE)["PYTHONPATH"]]
    assert SYSTEM_FILE.parent != Path("/app")  # that one is for a volume


def test_the_state_is_a_folder_in_the_users_own() -> None:
    """kworker closes it to others, which it may not do with the root of a volume."""
    [home] = re.findall(r"--home-dir (\S+)", FILE.read_text())
    assert Path(environment(SERVICE)["STATE_DIRECTORY"]).parent == Path(home)


def test_the_image_of_spark_has_the_archives_that_a_job_fetches() -> None:
    """By name, since a job fetches those that are missing, at each start of a container."""
    [fetch] = [rest for rest in rests(SPARK, "RUN") if "jars.fetch" in rest]
    named = re.findall(r"jars\.([A-Z_]+)", fetch)
    assert {getattr(jars, name) for name in named} == {jars.SPARK_KAFKA, jars.DELTA, jars.ICEBERG}
    [code] = re.findall(r'python -c "(.*)"', fetch)
    compile(code, "RUN", "exec")


def test_its_java_is_one_that_spark_runs_on() -> None:
    [version] = re.findall(r"openjdk-(\d+)-jre-headless", FILE.read_text())
    assert int(version) in (jars.JAVA_MIN, 21)
