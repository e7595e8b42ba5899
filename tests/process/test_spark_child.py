"""The Spark job under the supervisor: it may die as it likes, the workers do not care."""

import json
import os
import signal
from typing import Any

import pytest

from tests.support.bare_service import Service
from tests.support.lines import whole_lines
from tests.support.waiting import eventually


class Sparked:
    """A service with a Spark job that does what the test wants."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.write(settings={"spark": True})

    def will(self, **wanted: Any) -> None:
        (self.service.folder / "spark.json").write_text(json.dumps(wanted))

    def births(self) -> list[list[int]]:
        lines = whole_lines(self.service.folder / "spark.births")
        return [[int(pid) for pid in line.split()] for line in lines]

    def told(self) -> dict[str, Any]:
        return self.service.status().get("spark", {})


@pytest.fixture
def spark(service: Service) -> Sparked:
    return Sparked(service)


def test_the_spark_job_starts_and_its_progress_is_in_the_status(service: Service, spark: Sparked):
    spark.will()
    service.serve()
    told = eventually(lambda: (told := spark.told()).get("state") == "running" and told)
    assert told["tables"] == [
        {"name": "t", "batch": 3, "rows": 12, "behind": 0, "state": "running", "reason": ""}
    ]
    assert service.status()["state"] == "running"
    assert spark.births()[0][1] == service.pid


def test_a_killed_spark_job_restarts_and_workers_go_on(service: Service, spark: Sparked):
    """Workers do not depend on it: the results topic is the buffer."""
    spark.will()
    service.write(limits={"restart": {"first_delay_s": 0.3}})
    service.serve()
    before = service.running()
    eventually(spark.births)
    os.kill(spark.births()[0][0], signal.SIGKILL)
    service.says("the Spark job exited (SIGKILL); next start in 0.3 s, workers go on")
    eventually(lambda: len(spark.births()) == 2)
    eventually(lambda: spark.told()["state"] == "running")
    assert service.running() == before
    assert service.status()["reasons"] == []


def test_a_failing_spark_job_backs_off_and_is_red(service: Service, spark: Sparked):
    spark.will(exit=1)
    service.write(limits={"restart": {"first_delay_s": 0.3, "longest_delay_s": 30}})
    service.serve()
    service.says("next start in 1.2 s")

    def waits() -> dict[str, Any] | None:
        told = service.status()
        return told if told.get("spark", {}).get("state") == "restarting" else None

    told = eventually(waits, what="it is between two starts")
    assert told
    assert told["state"] == "red"
    assert told["reasons"] == ["spark: the job exited (exit code 1)"]


def test_a_spark_job_that_refuses_its_config_waits_for_a_reload(service: Service, spark: Sparked):
    spark.will(exit=78)
    service.serve()
    eventually(lambda: spark.told()["state"] == "failed")
    assert "fix it, then reload" in service.status()["reasons"][0]
    assert len(spark.births()) == 1
    assert len(service.running()) == 2
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0


def test_a_standby_is_named_and_is_no_problem(service: Service, spark: Sparked):
    """On all hosts but one, the job stands by."""
    spark.will(state="standby", reason="process 7 on other leads")
    service.serve()
    eventually(lambda: service.status()["spark"]["state"] == "standby")
    told = service.status()
    assert (told["state"], told["reasons"]) == ("running", [])
    assert told["spark"]["reason"] == "process 7 on other leads"


def test_a_reason_of_a_table_makes_the_service_red(service: Service, spark: Sparked):
    spark.will(reason="the schema changed")
    service.serve()
    eventually(lambda: service.status()["reasons"] == ["spark: the schema changed"])


def test_a_drain_ends_the_spark_job_last_by_force_if_needed(service: Service, spark: Sparked):
    """It is not waited for to catch up, and never left behind."""
    spark.will(deaf=True)
    service.write(limits={"spark_stop_s": 0.5}, behaviour={"*": {"drain_steps": 3}})
    service.serve()
    eventually(lambda: spark.told()["state"] == "running")
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    said = service.said()
    assert said.index("worker 1 ended") < said.index("the Spark job did not end in time: killed")
    with pytest.raises(ProcessLookupError):
        os.kill(spark.births()[0][0], 0)


def test_the_spark_job_does_not_outlive_a_killed_supervisor(service: Service, spark: Sparked):
    spark.will()
    service.serve()
    eventually(lambda: spark.told()["state"] == "running")
    service.send(signal.SIGKILL)
    service.exit_code()
    eventually(lambda: not _lives(spark.births()[0][0]), timeout_s=5)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
