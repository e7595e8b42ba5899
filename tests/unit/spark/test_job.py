"""The job: what it does if Spark does not start."""

from contextlib import nullcontext
from typing import Any

import pytest

from kworker.errors import KworkerError
from kworker.spark.job import Job
from kworker.spark.progress import JobState
from kworker.spark.stop import StopRequest


class Unstarted:
    """A job, and its own opener, whose session does not start."""

    def __init__(self) -> None:
        self._stop = StopRequest()
        self._opener, self._once = self, True
        self._polling_kafka = nullcontext
        self.reported: list[JobState] = []
        self._report = self.reported.append

    def open(self, *, learn: bool) -> None:
        raise KworkerError(f"Spark does not start: it may learn: {learn}")


def test_a_session_that_does_not_start_ends_the_job() -> None:
    job: Any = Unstarted()
    with pytest.raises(KworkerError, match="does not start"):
        Job._run_session(job)
    assert job.reported == [JobState.STARTING]


def test_a_session_that_the_stop_ended_is_no_failure() -> None:
    """A signal to all processes of the job ends the JVM, too, while it starts."""
    job: Any = Unstarted()
    job._stop.made = True
    Job._run_session(job)
    assert job.reported == [JobState.STARTING]
