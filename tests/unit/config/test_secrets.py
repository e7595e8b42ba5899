"""A canary in every place that may hold a secret: no view of the configuration sings it."""

import json
import pickle
from pathlib import Path

import pytest

from kworker.cli.config import MASK, masked
from kworker.cli.config import show as show_command
from kworker.config.secrets import without_secrets
from kworker.preflight.kafka import check_client_properties
from tests.unit.config.test_toml_file import SPARK_TABLE, Load, Problems, load, problems, toml

__all__ = ["load", "problems"]

CANARY = "canary-5f1e"
TABLES = f"[[spark.tables]]\n{SPARK_TABLE}"
KAFKA = f"""
sasl.password = "{CANARY}"
ssl.key.password = "{CANARY}"
ssl.keystore.password = "{CANARY}"
ssl.key.pem = "{CANARY}"
sasl.oauthbearer.client.secret = "{CANARY}"
sasl.oauthbearer.config = "principal={CANARY}"
sasl.oauthbearer.assertion.private.key.passphrase = "{CANARY}"
"""
SPARK = f"""
"spark.hadoop.fs.s3a.secret.key" = "{CANARY}"
"spark.hadoop.fs.s3a.access.key" = "{CANARY}"
"spark.hadoop.fs.s3a.encryption.key" = "{CANARY}"
"spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net" = "{CANARY}"
"spark.hadoop.fs.azure.sas.data.shop.blob.core.windows.net" = "{CANARY}"
"spark.hadoop.google.cloud.auth.service.account.private.key" = "{CANARY}"
"spark.sql.catalog.lake.credential" = "{CANARY}"
"spark.sql.catalog.lake.jdbc.password" = "{CANARY}"
"spark.sql.catalog.lake.s3.secret-access-key" = "{CANARY}"
"spark.sql.catalog.lake.uri" = "jdbc:postgresql://db/lake?user=ann&password={CANARY}&ssl=true"
"spark.hadoop.javax.jdo.option.ConnectionURL" = "jdbc:mysql://ann:{CANARY}@db/hive"
"""
EVERYWHERE = (
    toml(
        kafka=KAFKA,
        kafka__consumer=f'sasl.password = "{CANARY}"',
        kafka__producer=f'ssl.key.password = "{CANARY}"',
        idempotency=f'redis = "rediss://ann:{CANARY}@redis:6379/0"\nkey = "json:token"',
        console=f'token = "{CANARY}-of-24-letters"',
        spark__conf=SPARK,
    )
    + TABLES
)


@pytest.mark.parametrize("as_json", [False, True])
def test_config_show_masks_every_secret(
    load: Load, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """What people paste into a ticket. What is no secret stays, or it would be of no use."""
    show_command(load(EVERYWHERE).file, as_json=as_json)
    shown = capsys.readouterr().out
    assert CANARY not in shown
    assert shown.count(MASK) == EVERYWHERE.count(CANARY)
    for known in (
        f"rediss://ann:{MASK}@redis:6379/0",
        f"jdbc:postgresql://db/lake?user=ann&password={MASK}&ssl=true",
        f"jdbc:mysql://ann:{MASK}@db/hive",
        "json:token",
        "127.0.0.1:9092",
    ):
        assert known in shown


def test_no_repr_of_the_configuration_has_a_secret(load: Load) -> None:
    """A debugger, a log line and an exception's text may have one of any part of it."""
    config = load(EVERYWHERE)
    parts = [config, config.kafka, config.spark, config.idempotency, config.console]
    assert not [part for part in parts if CANARY in f"{part!r} {part}"]
    assert CANARY in str(pickle.dumps(config)), "there is none to be found"


@pytest.mark.parametrize(
    "address",
    [
        f"redis://:{CANARY}/x@redis:6379/0",
        f"redis://:x#{CANARY}@redis:6379/0",
        f"redis://:x?{CANARY}@redis/0",
        f"redis://:12345/{CANARY}@redis/0",
        f"redis://:x[{CANARY}]y@redis/0",
        f"redis://ann:x@redis:{CANARY}",
        f"http://ann:{CANARY}@redis",
        f"unix://:x#{CANARY}@/run/redis.sock",
    ],
)
def test_an_address_that_cuts_its_password_off_is_refused_without_it(
    problems: Problems, address: str
) -> None:
    """What follows the cut would be a port in an error, a host that is looked up, or shown."""
    [line] = problems(toml(idempotency=f'redis = "{address}"\nkey = "key"'))
    assert line.startswith("idempotency.redis: expected redis://host:port/db")
    assert "%2F" in line
    assert CANARY not in line


@pytest.mark.parametrize(
    "address",
    ["redis://:a%2Fb%40c@redis:1/0", "rediss://ann:a@b@redis", "unix://:x@/run/re@dis.sock?db=1"],
)
def test_a_password_may_have_any_character_in_its_code(load: Load, address: str) -> None:
    config = load(toml(idempotency=f'redis = "{address}"\nkey = "key"'))
    assert config.idempotency is not None
    assert config.idempotency.redis == address


WRONG = {
    "a date as a password": toml(kafka="sasl.password = 2001-02-03"),
    "a list as a password": toml(kafka=f'sasl.password = ["{CANARY}"]'),
    "a number as a token": toml(console="token = 2001020320010203"),
    "a token that is too short": toml(console='token = "2001-02-03"'),
    "a text in place of a table": toml(top=f'spark = "{CANARY}"'),
    "a table in place of a text": toml(idempotency=f'redis = {{ x = "{CANARY}" }}\nkey = "key"'),
    "a key that is not known": toml(console=f'tokens = "{CANARY}"'),
    "an option for all to see": toml(
        spark__conf='"spark.driver.extraJavaOptions" = "-Da.trustStorePassword=2001-02-03"'
    )
    + TABLES,
}


@pytest.mark.parametrize("text", WRONG.values(), ids=list(WRONG))
def test_a_mistake_at_a_secret_is_told_without_it(problems: Problems, text: str) -> None:
    [line] = problems(text)
    assert not [part for part in (CANARY, "2001-02-03", "20010203") if part in line]


@pytest.mark.parametrize(
    "variable",
    ["KAFKA", "KAFKA__PRODUCER", "SPARK", "SPARK__CONF", "IDEMPOTENCY", "CONSOLE"],
)
def test_a_variable_that_is_no_json_is_told_without_its_text(
    problems: Problems, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Half a table of properties, with a password in it."""
    monkeypatch.setenv(f"KWORKER_{variable}", f'{{"sasl.password": "{CANARY}"')
    lines = problems(toml())
    assert lines[0].endswith(f"expected a table (from $KWORKER_{variable})")
    assert CANARY not in str(lines)


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"console": 'listen = { env = "SECRET" }'}, "console.listen: expected an IP address"),
        ({"delivery": 'topics = [{ env = "SECRET" }]'}, "delivery.topics: expected a topic"),
        ({"handlers": 'orders = { env = "SECRET" }'}, 'handlers.orders: expected "module:func'),
        ({"source": 'start = { env = "SECRET" }'}, "source.start: expected"),
    ],
)
def test_a_value_from_elsewhere_is_never_quoted(
    problems: Problems,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, str],
    line: str,
) -> None:
    """Whatever its key: somebody may have taken one variable for another."""
    monkeypatch.setenv("SECRET", f"{CANARY} !")
    [found] = problems(toml(**section))
    assert found.startswith(line)
    assert CANARY not in found


def test_two_tables_at_one_secret_place_are_told_without_it(
    problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that compares values quotes what it has found."""
    monkeypatch.setenv("SECRET", f"s3a://{CANARY}")
    table = '[[spark.tables]]\nname = "{}"\npath = {{ env = "SECRET" }}\n'
    [line] = problems(toml(spark="") + table.format("a") + table.format("b"))
    assert line == f'spark.tables: 2 tables have path = "{MASK}"; each needs its own'


def test_a_property_that_librdkafka_refuses_is_told_without_its_value(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own words quote the value."""
    monkeypatch.setenv("SECRET", CANARY)
    config = load(toml(kafka='security.protocol = { env = "SECRET" }'))
    [found] = check_client_properties(config)
    assert found.problem == (
        f'Invalid value "{MASK}" for configuration property "security.protocol"'
    )
    (tmp_path / "ca.pem").write_text(CANARY)
    config = load(toml(kafka='security.protocol = "ssl"\nssl.ca.location = "ca.pem"'))
    [found] = check_client_properties(config)
    assert (found.key, CANARY in str(found)) == ("kafka.ssl.ca.location", False)
    assert found.next_step == "name a file with the certificates of authorities, in PEM"


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:9092,127.0.0.1:9093", "hdfs://name:8020/data", "s3a://bucket/data"),
        *("STRUCT<token: STRING>", "-Dtokenizer=plain -XX:+UseSerialGC", "json:password"),
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    """`config show` prints a file that means the same."""
    assert without_secrets(text) == text


def test_a_schema_with_a_secret_of_the_same_name_is_shown(load: Load) -> None:
    """A name tells of secrets in tables of properties only."""
    table = f'{TABLES}\nschema = "password STRING, token STRING"'
    shown = json.dumps(masked(load(toml(spark="") + table)))
    assert "password STRING, token STRING" in shown


SCRAM = 'security.protocol = "sasl_ssl"\nsasl.mechanism = "SCRAM-SHA-512"\n'


@pytest.mark.parametrize(
    ("kafka", "lines"),
    [
        ('security.protocol = "SASL_SSL"', ["kafka.sasl.mechanism: missing; give "]),
        (SCRAM, ["kafka.sasl.username: missing; SCRAM-SHA-512", "kafka.sasl.password: missing; "]),
        (f'{SCRAM}sasl.username = "ann"', ["kafka.sasl.password: missing; SCRAM-SHA-512 needs it"]),
        (f'{SCRAM}sasl.username = "ann"\nsasl.password = ""', ["kafka.sasl.password: missing; "]),
    ],
)
def test_a_login_without_what_it_needs_is_told(
    problems: Problems, kafka: str, lines: list[str]
) -> None:
    """librdkafka says so without a key, and of a missing mechanism that it must be recompiled."""
    found = problems(toml(kafka=kafka))
    assert [line[: len(start)] for line, start in zip(found, lines, strict=True)] == lines


def test_a_password_that_is_not_there_is_told_once(
    problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    text = f'{SCRAM}sasl.username = "ann"\nsasl.password = {{ env = "NO_SUCH_VARIABLE" }}'
    assert problems(toml(kafka=text)) == [
        "kafka.sasl.password: the environment variable NO_SUCH_VARIABLE is not set"
    ]


@pytest.mark.parametrize(("given", "kept"), [("probe", "probe"), ("ca.pem", "{folder}/ca.pem")])
def test_the_systems_own_authorities_are_no_path(load: Load, given: str, kept: str) -> None:
    """`probe` is a word of librdkafka's; any other place is beside the file."""
    config = load(toml(kafka=f'ssl.ca.location = "{given}"'))
    folder = config.file.parent
    assert config.kafka.common["ssl.ca.location"] == kept.format(folder=folder)
