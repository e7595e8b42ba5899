"""What pyspark keeps of a JVM."""

import subprocess
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from kworker.spark.session.jvm import end_jvm, forget_ended_jvm, has_live_jvm


def test_a_jvm_is_forgotten_only_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is made with the JVM that pyspark keeps, also if that one has ended."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(proc=process)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", object())
        forget_ended_jvm()
        assert SparkContext._gateway is gateway
        assert has_live_jvm()
        assert end_jvm(lambda _: True)
        forget_ended_jvm()
    assert (SparkContext._gateway, SparkContext._jvm) == (None, None)
