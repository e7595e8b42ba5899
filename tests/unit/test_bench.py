"""What a person who looks at the benchmarks is told, before anything is started."""

import pytest

from bench import memory


def test_help_on_the_memory_benchmark_teaches_and_starts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        memory.main(["--help"])
    assert ended.value.code == 0
    assert "a Kafka, writes 100,000 records of 10 KB" in capsys.readouterr().out
