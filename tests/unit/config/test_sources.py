"""Where the configuration comes from: files looked for, the environment over them, and `show`."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from kworker.cli.config import MASK, masked
from kworker.cli.config import show as show_command
from kworker.config import toml_file
from kworker.errors import ConfigError
from tests.unit.config.test_toml_file import Load, Problems, load, problems, toml

__all__ = ["load", "problems"]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KWORKER_CONFIG", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


def test_the_file_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config, then $KWORKER_CONFIG, then ./kworker.toml."""
    for name in ("named.toml", "variable.toml", "kworker.toml"):
        (tmp_path / name).write_text(toml())
    monkeypatch.chdir(tmp_path)
    assert toml_file.find() == tmp_path / "kworker.toml"
    monkeypatch.setenv("KWORKER_CONFIG", "variable.toml")
    assert toml_file.find() == tmp_path / "variable.toml"
    assert toml_file.find("named.toml") == tmp_path / "named.toml"


def test_a_missing_file_names_the_places_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, with the next step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toml_file, "SYSTEM_FILE", tmp_path / "etc" / "kworker.toml")
    with pytest.raises(ConfigError) as refused:
        toml_file.find()
    assert str(refused.value) == (
        f"no configuration file at {tmp_path}/kworker.toml, {tmp_path}/etc/kworker.toml; name one"
        " with --config or $KWORKER_CONFIG, or write one with: kworker init"
    )
    with pytest.raises(ConfigError, match=r"/other\.toml does not exist; write one"):
        toml_file.find("other.toml")
    with pytest.raises(ConfigError, match="is a folder; name the file in it"):
        toml_file.find(tmp_path)
    monkeypatch.setenv("KWORKER_CONFIG", "other.toml")
    with pytest.raises(ConfigError, match=r"other\.toml \(\$KWORKER_CONFIG\) does not exist"):
        toml_file.find()


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"[a]\n[a]"])
def test_invalid_toml_is_told_with_its_place(tmp_path: Path, content: bytes) -> None:
    """Half-written files happen."""
    file = tmp_path / "kworker.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        toml_file.load(file)
    [line] = refused.value.problems
    assert line.startswith(f"{file} is not TOML: ")
    assert "\n" not in line


def test_variables_override_the_file(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, texts, lists and tables; in [kafka] an underscore stands for a dot."""
    environment = {
        "KWORKER_NAME": "other",
        "KWORKER_WORKERS__THREADS": "32",
        "KWORKER_WORKERS__DRAIN_TIMEOUT": "9s",
        "KWORKER_SOURCE__TOPICS": '["a", "b"]',
        "KWORKER_KAFKA__SASL_PASSWORD": "123",
        "KWORKER_KAFKA__CONSUMER__FETCH_MIN_BYTES": "7",
        "KWORKER_KAFKA__PRODUCER": '{"linger.ms": 9}',
        "KWORKER_SPARK__TABLES": '[{"name": "t", "path": "p", "dedupe": true}]',
        "KWORKER_SPARK__CONF": '{"spark.sql.caseSensitive": "true"}',
        "KWORKER_CACHE": "is no key",
        "KWORKER_PARENT_PID": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = load(toml(kafka__producer='acks = "all"', workers="threads = 3"))
    assert config.name == "other"
    assert config.delivery.results == "other.results"
    assert (config.workers.threads, config.workers.drain_timeout) == (32, 9)
    assert config.source.topics == ["a", "b"]
    assert config.kafka.common["sasl.password"] == "123"
    assert config.kafka.consumer == {"fetch.min.bytes": "7"}
    assert config.kafka.producer == {"acks": "all", "linger.ms": 9}
    assert config.spark is not None
    assert config.spark.conf == {"spark.sql.caseSensitive": "true"}
    assert config.spark.tables[0].dedupe


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "KWORKER_WORKERS__THREADS",
            "many",
            'workers.threads: expected a whole number of at least 1, got "many"'
            " (from $KWORKER_WORKERS__THREADS)",
        ),
        (
            "KWORKER_WORKERS__THRAEDS",
            "4",
            "$KWORKER_WORKERS__THRAEDS: no such key; did you mean KWORKER_WORKERS__THREADS?",
        ),
        (
            "KWORKER_DELIVERY__TOPICS",
            "a,b",
            'delivery.topics: expected a list, got "a,b" (from $KWORKER_DELIVERY__TOPICS)',
        ),
        (
            "KWORKER_HANDLERS__ORDERS",
            "h:f",
            "$KWORKER_HANDLERS__ORDERS: expected all of handlers as JSON in KWORKER_HANDLERS",
        ),
        (
            "KWORKER_SPARK__TABLES__0__PATH",
            "p",
            "$KWORKER_SPARK__TABLES__0__PATH: expected all of spark.tables as JSON in"
            " KWORKER_SPARK__TABLES",
        ),
        ("KWORKER_KAFKA__GROUP_ID", "g", "kafka.group.id: kworker sets this property itself"),
        ("KWORKER_NAEM", "x", "$KWORKER_NAEM: no such key; did you mean KWORKER_NAME?"),
        (
            "KWORKER_WORKERS_THREADS",
            "4",
            "$KWORKER_WORKERS_THREADS: no such key; did you mean KWORKER_WORKERS__THREADS?",
        ),
        ("KWORKER_CONSOLE__PORT", "1", "$KWORKER_CONSOLE__PORT: no such key"),
        ("KWORKER_PORT_HTTP", "1", "$KWORKER_PORT_HTTP: no such key"),
    ],
)
def test_a_wrong_variable_is_told_by_its_name(
    problems: Problems, monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    """A misspelt override that is silently ignored is the worst of both."""
    monkeypatch.setenv(name, value)
    [found] = problems(toml())
    assert found.startswith(line)


@pytest.mark.parametrize("service", ["KWORKER", "KWORKER_CONSOLE", "KWORKER_ORDERS_2"])
def test_kubernetes_service_variables_are_ignored(
    load: Load, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    """It gives each container these for each Service there, and nobody wrote them."""
    for name in (
        *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "SERVICE_PORT_METRICS_2", "PORT"),
        *("PORT_8321_TCP", "PORT_8321_TCP_PROTO", "PORT_8321_TCP_PORT", "PORT_8321_TCP_ADDR"),
        *("PORT_53_UDP", "PORT_53_UDP_ADDR", "PORT_9_SCTP", "PORT_9_SCTP_PORT"),
    ):
        monkeypatch.setenv(f"{service}_{name}", "tcp://10.0.0.1:8321")
    assert load(toml()).name == "orders"


def test_state_is_kept_where_systemd_says(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unless the file says otherwise; of several folders, the first."""
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/kworker/orders:/var/lib/other")
    assert load(toml()).state_dir == Path("/var/lib/kworker/orders")
    assert load(toml(top='state_dir = "mine"')).state_dir == tmp_path / "mine"


def test_only_import_path_extends_sys_path_and_only_once(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`config show` must not change what the process imports."""
    monkeypatch.setattr(sys, "path", ["before"])
    config = load(toml())
    assert sys.path == ["before"]
    toml_file.import_path(config)
    toml_file.import_path(config)
    assert sys.path == [str(config.file.parent), "before"]


SECRETS = """
sasl.password = "s3cret"
ssl.key.password = "s3cret"
ssl.key.pem = "s3cret"
sasl.jaas.config = "s3cret"
sasl.oauthbearer.client.secret = "s3cret"
sasl.username = { env = "SOME_SECRET" }
"""


def test_show_masks_every_secret(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, as part of an address, and whatever came from elsewhere."""
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    config = load(
        toml(
            kafka=SECRETS,
            idempotency='redis = "redis://user:s3cret@localhost/0"\nkey = "json:id"',
            spark='tables = [{name = "t", path = { env = "SOME_SECRET" }}]',
            spark__conf='"spark.hadoop.fs.s3a.secret.key" = "s3cret"',
        )
    )
    shown = masked(config)
    assert "s3cret" not in json.dumps(shown)
    assert shown["kafka"]["sasl.password"] == MASK
    assert shown["kafka"]["bootstrap.servers"] == "127.0.0.1:9092"
    assert shown["idempotency"]["redis"] == f"redis://user:{MASK}@localhost/0"
    assert shown["idempotency"]["key"] == "json:id"
    assert "s3cret" not in repr(config.kafka)


def test_the_output_of_show_is_an_equivalent_file(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it can be kept, compared and tried."""
    text = toml(
        source='max_age = "2h"',
        kafka__consumer='"fetch.min.bytes" = 3',
        idempotency='redis = "redis://localhost/0"\nkey = "json:id"',
        retry='delays = ["90s", "1.5s"]',
        spark__conf='"spark.x" = "a \\"quoted\\" word"',
    )
    text += (
        '[[spark.tables]]\nname = "t"\npath = "p"\n[[spark.tables]]\nname = "u"\ntable = "c.s.u"'
    )
    config = load(text)
    show_command(config.file)
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["retry"]["delays"] == ["90s", "1500ms"]
    assert load(printed) == config
    show_command(config.file, as_json=True)
    assert json.loads(capsys.readouterr().out) == tomllib.loads(printed)
