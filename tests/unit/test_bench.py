"""What a person who looks at the benchmarks is told, before anything is started."""

from types import ModuleType

import pytest

from bench import console, memory


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        (memory, "a Kafka, writes 100,000 records of 10 KB"),
        (console, "a Kafka, writes 4,000,000 records of 200 bytes"),
    ],
)
def test_help_on_a_benchmark_teaches_and_starts_nothing(
    benchmark: ModuleType, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--help"])
    assert ended.value.code == 0
    assert words in capsys.readouterr().out
