"""What stands in kworker.toml is read, judged and completed as documented."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kworker.config import toml_file
from kworker.config.client_properties import CONSUMER_DEFAULTS, PRODUCER_DEFAULTS
from kworker.config.keys import all_keys, section_of, takes
from kworker.config.model import Config, Section
from kworker.config.reference import all_references
from kworker.config.schema import file_schema
from kworker.core.duration import format_duration, parse_duration
from kworker.errors import ConfigError

ETC = Path(__file__).parents[3] / "etc" / "kworker.toml"

BASE: dict[str, str] = {
    "": 'name = "orders"\nhandler = "handlers:notify"',
    "source": 'topics = ["orders"]',
    "kafka": '"bootstrap.servers" = "127.0.0.1:9092"',
}
SPARK_TABLE = 'name = "orders"\npath = "data/orders"'


def toml(**sections: str) -> str:
    """The smallest file, with lines added to its sections (`top` is what stands before them)."""
    added = {name.replace("__", "."): text for name, text in sections.items()}
    top = f"{added.pop('top', '')}\n{BASE['']}\n"
    names = dict.fromkeys([*BASE, *added])
    bodies = [f"[{n}]\n{BASE.get(n, '')}\n{added.get(n, '')}\n" for n in names if n]
    return top + "".join(bodies)


Load = Callable[[str], Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a file with this text, in `tmp_path`."""

    def written_and_loaded(text: str) -> Config:
        file = tmp_path / "kworker.toml"
        file.write_text(text)
        return toml_file.load(file)

    return written_and_loaded


@pytest.fixture
def problems(load: Load) -> Callable[[str], list[str]]:
    """What is wrong with a file of this text."""

    def found(text: str) -> list[str]:
        with pytest.raises(ConfigError) as refused:
            load(text)
        assert refused.value.exit_code == 78
        return refused.value.problems

    return found


Problems = Callable[[str], list[str]]


def test_the_smallest_file_is_completed_from_the_name(load: Load, tmp_path: Path) -> None:
    """Nobody should have to write what can be told from `name`."""
    config = load(toml())
    assert config.delivery.results == "orders.results"
    assert config.dead_letter.topic == "orders.dead"
    assert config.requeue_topic == "orders.requeue"
    assert config.dead_state_topic == "orders.dead.state"
    assert config.retry_topic(60) == "orders.retry.1m"
    assert config.state_dir == tmp_path / ".kworker" / "orders"
    assert config.file == tmp_path / "kworker.toml"
    assert config.workers.handler_timeout == 300
    assert config.workers.in_flight_bytes == 64 << 20
    assert config.source.max_age is None


def test_given_names_stay_as_given(load: Load) -> None:
    """A default must not win over the file."""
    config = load(
        toml(
            top='state_dir = "/var/lib/x"',
            delivery='results = "a"',
            dead_letter='topic = "b"',
            idempotency='redis = "redis://localhost"\nkey = "key"\nprefix = "p:"',
        )
    )
    assert (config.delivery.results, config.dead_letter.topic) == ("a", "b")
    assert config.idempotency is not None
    assert config.idempotency.prefix == "p:"
    assert config.state_dir == Path("/var/lib/x")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            toml(workers='threads = "many"'),
            'workers.threads: expected a whole number of at least 1, got "many"',
        ),
        (
            toml(workers="processes = true"),
            "workers.processes: expected a whole number of at least 1, got true",
        ),
        (
            toml(workers="max_records = -1"),
            "workers.max_records: expected a whole number of at least 0, got -1",
        ),
        (
            toml(workers="drain_timeout = 30"),
            'workers.drain_timeout: expected a duration such as "200ms", "5s", "10m" or "24h",'
            " got 30",
        ),
        (
            toml(workers='handler_timeout = "0s"'),
            'workers.handler_timeout: expected a duration of at least 1ms, got "0s"',
        ),
        (
            toml(delivery='commit_interval = "0.5ms"'),
            'delivery.commit_interval: expected a duration of whole milliseconds, got "0.5ms"',
        ),
        (
            toml(workers='memory = "1GB"'),
            'workers.memory: expected a size such as "16KiB", "64MiB" or "2GiB", got "1GB"',
        ),
        (
            toml(workers='ordering = "keys"'),
            'workers.ordering: expected "key", "partition" or "none", got "keys"',
        ),
        (
            toml(source='format = "avro"'),
            'source.format: "avro" is reserved for a later version; expected "json"',
        ),
        (
            toml(source='registry = "http://localhost"'),
            "source.registry: reserved for a later version; leave it out",
        ),
        (toml(retry='delays = "1s"'), 'retry.delays: expected a list, got "1s"'),
        (toml(top="log = 3"), "log: expected a table, got 3"),
        (toml(log='levels = { mine = "loud" }'), "log.levels.mine: expected "),
        (toml(log='levels = { "kworker.cli" = "debug" }'), "log.levels.kworker.cli: expected the"),
        (toml(log='levels = { root = "debug" }'), "log.levels.root: expected the name of a logger"),
        (toml(log="rotate = 3"), "log.rotate: expected a size"),
        (toml(log="keep = 0"), "log.keep: expected a whole number of at least 1"),
        (toml(kafka="retries = [1]"), "kafka.retries: expected a string, a number, true or"),
        (toml(workers="thread = 3"), "workers.thread: unknown key; did you mean threads?"),
        (toml(top="threads = 3"), "threads: unknown key; did you mean workers.threads?"),
        (toml(top='file = "x"'), "file: unknown key"),
        (toml(top='"x.y" = 1'), "x.y: unknown key"),
        (
            toml(dead_letter='breaker = "half"'),
            'dead_letter.breaker: expected "P% of N" such as "50% of 200", or "" for off,'
            ' got "half"',
        ),
        (toml(dead_letter='breaker = "0% of 9"'), "dead_letter.breaker: expected"),
        (toml(console='listen = "8321"'), "console.listen: expected an IP address (or localhost)"),
        (toml(console='listen = "::1:70000"'), "console.listen: expected an IP address"),
        (toml(console='listen = "127.0.0.1:70000"'), "console.listen: expected an IP address"),
        (toml(console='listen = "myhost:8321"'), "console.listen: expected an IP address"),
        (toml(console='listen = "0.0.0.0:8321"'), "console.token: must be set, since other hosts"),
        (toml(console='token = "short"'), "console.token: expected at least 16 characters"),
        (toml(console='token = "schlüssel-der-konsole"'), "console.token: expected at least 16"),
        (toml(retry='never = ["a b"]'), "retry.never: expected an exception's name"),
        (toml(delivery='topics = ["orders"]'), 'delivery.topics: "orders" is a source topic'),
        (toml(delivery='results = "orders"'), 'delivery.results: "orders" is a source topic'),
        (toml(delivery='results = "a b"'), "delivery.results: expected a topic's name"),
        (toml(dead_letter='topic = "orders.results"'), "dead_letter.topic: the same topic as"),
        (toml(handlers='order = "h:f"'), "handlers.order: not one of source.topics; did you mean"),
        (toml(handlers='orders = "hf"'), 'handlers.orders: expected "module:function"'),
        (toml(top='instance = "a b"'), "instance: expected letters, digits, dots, - or _"),
        (
            toml(idempotency='redis = "localhost"\nkey = "key"'),
            "idempotency.redis: expected redis://",
        ),
        (
            toml(idempotency='redis = "redis://h"\nkey = "id"'),
            'idempotency.key: expected json:PATH, header:NAME, key or module:function, got "id"',
        ),
        (toml(idempotency='redis = "redis://h"'), 'idempotency.key: missing; give key = "json:'),
        (toml(spark="tables = []"), "spark.tables: expected at least one"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_the_right_form(
    problems: Problems, text: str, line: str
) -> None:
    """The line is all that its reader gets; nothing else is wrong with these files."""
    [found] = problems(text)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('handler = "h:f"', 'name: missing; give name = "orders"'),
        ('name = "a b"', "name: expected at most 150 letters, digits, dots, - or _"),
        ('name = "' + "x" * 151 + '"', "name: expected at most 150 letters, digits, dots, - or _"),
        ('name = "x"', 'handler: missing for topic "orders"; give handler = "module:function"'),
        ('name = "x"\nhandler = "h"', 'handler: expected "module:function" or "module:Class"'),
    ],
)
def test_name_and_handler_are_needed(problems: Problems, text: str, line: str) -> None:
    """They are the two that no default can replace."""
    rest = toml().partition("[")[2]
    assert any(found.startswith(line) for found in problems(f"{text}\n[{rest}"))


@pytest.mark.parametrize(
    ("topics", "line"),
    [
        ('["^a", "b"]', 'source.topics: a regular expression must be the only entry, got "^a"'),
        (
            '["^("]',
            'source.topics: expected a POSIX extended regular expression, got "^(": missing )',
        ),
        (
            r"['^a\d+$']",
            r'source.topics: expected a POSIX extended regular expression, got "^a\d+$": \d is not'
            " in it; write [0-9]",
        ),
        ('["a b"]', "source.topics: expected a topic's name"),
        ('["a", "a"]', 'source.topics: "a" is listed 2 times; keep one'),
        ("[]", "source.topics: expected at least one, got an empty list"),
        ("[1]", "source.topics[0]: expected a string, got 1"),
    ],
)
def test_source_topics_are_names_or_one_pattern(problems: Problems, topics: str, line: str) -> None:
    """What Kafka would refuse only at run time is refused before."""
    text = toml().replace('["orders"]', topics)
    assert problems(text)[0].startswith(line)


def test_a_pattern_must_not_match_what_the_service_writes(problems: Problems, load: Load) -> None:
    """It would feed itself; its own `.results` is left out of what a pattern matches."""
    anything = toml(delivery='results = "invoices"').replace('["orders"]', '["^.*"]')
    assert problems(anything) == [
        'delivery.results: "invoices" is a source topic: the service would read its own output'
    ]
    assert load(toml().replace('["orders"]', '["^.*"]')).source.pattern == "^.*"


def test_brokers_must_not_read_a_pattern_otherwise(problems: Problems, load: Load) -> None:
    """By the newer group protocol they compare it with whole names, so `^orders-` finds none."""
    new = {"kafka": '"group.protocol" = "consumer"', "workers": 'membership = "dynamic"'}
    [found] = problems(toml(**new).replace('["orders"]', '["^orders-"]'))
    assert found.startswith("source.topics: expected .* or $ at its end, since with group.protocol")
    for pattern in ("^orders-.*", "^orders-(eu|us)$"):
        assert load(toml(**new).replace('["orders"]', f'["{pattern}"]')).source.pattern == pattern


def test_every_mistake_is_told_at_once(problems: Problems) -> None:
    """Shape and sense together: nobody should need a second try for the second mistake."""
    text = toml(
        top='handlr = "x"',
        kafka='"group.id" = "x"',
        workers='threads = 0\nmemory = "100MiB"',
        dead_letter='breaker = "all"',
        spark__tables='name = "t"',
    ).replace("[spark.tables]", "[[spark.tables]]")
    text = text.replace('"bootstrap.servers" = "127.0.0.1:9092"', "")
    keys = {problem.partition(":")[0] for problem in problems(text)}
    assert keys == {
        "handlr",
        "workers.threads",
        "workers.memory",
        "dead_letter.breaker",
        "kafka.group.id",
        "kafka.bootstrap.servers",
        "spark.tables[t].path",
    }


def test_consequences_of_a_mistake_are_not_told(problems: Problems) -> None:
    """`mode` is misspelt, so nothing can be said of `merge_on`; `source` is missing, so no
    handler can be."""
    table = f'{SPARK_TABLE}\nmode = "updat"\nmerge_on = ["value"]'
    text = toml(spark__tables=table).replace("[spark.tables]", "[[spark.tables]]")
    assert problems(text) == [
        'spark.tables[orders].mode: expected "append", "complete" or "update", got "updat"'
    ]
    assert problems('name = "x"\n[kafka]\n"bootstrap.servers" = "h:1"') == [
        'source: missing; give a [source] table with topics = ["orders"]'
    ]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ('table = "c.s.t"', "path: path and table exclude each other; keep one"),
        ('mode = "complete"\nformat = "parquet"', "mode: parquet files cannot be rewritten"),
        (
            'mode = "update"\nmerge_on = ["value"]\nformat = "parquet"',
            "mode: parquet cannot be updated",
        ),
        ('mode = "update"', 'merge_on: missing for mode = "update"'),
        ('merge_on = ["value"]', 'merge_on: has no effect with mode = "append"'),
        ('dedupe = true\nformat = "parquet"', "dedupe: parquet cannot merge"),
        ('mode = "upsert"', 'mode: "upsert" is reserved for a later version'),
        ('transform = "x"', 'transform: expected "module:function", got "x"'),
        ('schema = ""', "schema: expected columns such as"),
        ('schema = "a INT, Key INT"', 'schema: column "key" is added by kworker'),
        ('schema = "a INT, A INT"', 'schema: column "a" is listed 2 times; keep one'),
        ('partition_by = ["valeu"]', 'partition_by: the table has no column "valeu"; did you mean'),
    ],
)
def test_an_impossible_table_is_refused(problems: Problems, lines: str, line: str) -> None:
    """Spark would say so only after it has started, and with a page of Java."""
    text = toml(spark__tables=f"{SPARK_TABLE}\n{lines}")
    [found] = problems(text.replace("[spark.tables]", "[[spark.tables]]"))
    assert found.startswith(f"spark.tables[orders].{line}")


@pytest.mark.parametrize(
    "conf",
    [
        "",
        '"spark.sql.catalog.other" = "org.example.Catalog"',
        '"spark.sql.catalog.spark_catalog" = "org.apache.spark.sql.delta.catalog.DeltaCatalog"',
        '"spark.sql.catalogImplementation" = "in-memory"',
        '"spark.sql.defaultCatalog" = "spark_catalog"',
    ],
)
@pytest.mark.parametrize("name", ["orders", "shop.orders", "spark_catalog.shop.orders"])
def test_a_table_in_sparks_own_catalog_is_refused(problems: Problems, name: str, conf: str) -> None:
    """Spark's own catalog ends with its session, and then the table's folder is in the way."""
    [line] = problems(in_catalog(name, conf))
    assert line.startswith(f'spark.tables[t].table: "{name}" is in Spark\'s own catalog')


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("orders", '"spark.sql.defaultCatalog" = "lake"'),
        ("shop.orders", '"spark.sql.catalogImplementation" = "hive"'),
        ("shop.orders", '"spark.sql.catalog.spark_catalog.type" = "hadoop"'),
        ("lake.orders", '"spark.sql.catalog.lake" = "org.apache.iceberg.spark.SparkCatalog"'),
        ("lake.shop.orders", ""),  # which the cluster's own defaults may know
    ],
)
def test_a_table_in_a_lasting_catalog_is_accepted(load: Load, name: str, conf: str) -> None:
    """Some catalogs have no schemas, and one is the default."""
    spark = load(in_catalog(name, conf)).spark
    assert spark is not None
    assert [table.table for table in spark.tables] == [name]


def in_catalog(name: str, conf: str) -> str:
    return f'{toml()}\n[spark.conf]\n{conf}\n[[spark.tables]]\nname = "t"\ntable = "{name}"'


def test_columns_are_read_through_nested_types(load: Load) -> None:
    """Commas within a type part no columns, so these names all exist."""
    schema = "a STRUCT<x: INT, y: DECIMAL(10,2)>, `b c` MAP<STRING, INT> COMMENT 'd, e', f INT"
    table = f'{SPARK_TABLE}\nschema = "{schema}"\npartition_by = ["a", "b c", "F", "source_topic"]'
    text = toml(spark__tables=table).replace("[spark.tables]", "[[spark.tables]]")
    assert load(text).spark is not None


def test_tables_share_neither_name_nor_place(problems: Problems) -> None:
    """Two queries in one checkpoint or one folder destroy each other's work."""
    text = f"{toml()}\n[[spark.tables]]\n{SPARK_TABLE}\n[[spark.tables]]\n{SPARK_TABLE}"
    assert problems(text) == [
        'spark.tables: 2 tables have name = "orders"; each needs its own',
        'spark.tables: 2 tables have path = "data/orders"; each needs its own',
    ]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("group.id", "set name instead"),
        ("group.instance.id", "set instance and workers.membership instead"),
        ("enable.auto.commit", "set delivery.commit_interval instead"),
        ("enable.auto.offset.store", "set delivery.commit_interval instead"),
        ("transactional.id", "set delivery.guarantee instead"),
        ("isolation.level", "it is always read_committed"),
        ("auto.offset.reset", "set source.start instead"),
        ("partition.assignment.strategy", "it is always range"),
        ("group.remote.assignor", "it is always range"),
        ("enable.partition.eof", "it is always true"),
        ("error_cb", "a callback cannot be configured"),
        ("on_delivery", "a callback cannot be configured"),
    ],
)
@pytest.mark.parametrize("section", ["kafka", "kafka.consumer", "kafka.producer"])
def test_properties_that_kworker_owns_are_refused(
    problems: Problems, section: str, name: str, instead: str
) -> None:
    """Each would break a promise, silently; the line says which key is meant for it."""
    [found] = problems(toml(**{section.replace(".", "__"): f'"{name}" = "x"'}))
    assert found.startswith(f"{section}.{name}: kworker sets this property itself: {instead}")


def test_the_newer_group_protocol_goes_with_dynamic_members_only(
    problems: Problems, load: Load
) -> None:
    """A static newcomer dies of a fatal error there, and the broker sets the times."""
    new = '"group.protocol" = "consumer"'
    [found] = problems(toml(kafka=new))
    assert found.startswith("workers.membership: ")
    assert 'membership = "dynamic"' in found
    dynamic = 'membership = "dynamic"'
    [found] = problems(toml(kafka__consumer=f'{new}\n"session.timeout.ms" = 9', workers=dynamic))
    assert found.startswith("kafka.consumer.session.timeout.ms: with group.protocol")
    assert load(toml(kafka=new, workers=dynamic)).workers.membership == "dynamic"
    [found] = problems(toml(kafka='"group.protocol" = "new"'))
    assert found.startswith('kafka.group.protocol: expected "classic" or "consumer"')


def test_no_acknowledgement_at_all_is_refused(problems: Problems) -> None:
    """It would count a result as published that no broker has."""
    assert problems(toml(kafka__producer="acks = 0"))[0].startswith(
        'kafka.producer.acks: expected "all", got "0"'
    )


def test_a_transaction_must_be_able_to_end_before_kafka_ends_it(
    problems: Problems, load: Load
) -> None:
    """One would be aborted after the other, and nothing would ever be published."""
    slow = 'commit_interval = "16s"'
    assert load(toml(delivery=slow)).delivery.commit_interval == 16
    exactly = f'{slow}\nguarantee = "exactly-once"'
    assert problems(toml(delivery=exactly)) == [
        "delivery.commit_interval: 16s is more than half of transaction.timeout.ms (30s), after"
        " which Kafka aborts a transaction; lower commit_interval, or raise transaction.timeout.ms"
    ]
    longer = '"transaction.timeout.ms" = 32000'
    assert load(toml(delivery=exactly, kafka__producer=longer))


def test_a_ceiling_above_memory_is_refused_with_its_sum(problems: Problems, load: Load) -> None:
    """A worker that is as full as it may be must not be replaced for it, over and over."""
    [found] = problems(toml(workers='memory = "300MiB"'))
    assert found == (
        "workers.memory: 300MiB is less than the 339MiB that a worker may need (120 MB + 2 ×"
        " (in_flight_bytes 64MiB + prefetch 16MiB) + the producer's queue 64MiB);"
        " raise workers.memory, or lower workers.in_flight_bytes"
    )
    held = toml(workers='memory = "350MiB"', retry='mode = "hold"')
    assert "held_bytes 16MiB" in problems(held)[0]
    assert load(held.replace("hold", "topic")).retry.mode == "topic"
    small = '"queued.max.messages.kbytes" = 1024'
    assert load(toml(workers='memory = "310MiB"', kafka__consumer=small))


def test_quoted_and_nested_dots_are_the_same(load: Load, problems: Problems) -> None:
    """TOML reads unquoted dots as tables, and Kafka's documentation writes no quotes."""
    config = load(
        toml(
            kafka='sasl.username = "u"\nssl.ca.location = "ca.pem"\nconsumer.fetch.min.bytes = 3',
            kafka__producer="linger.ms = 7",
            spark='conf.spark.ui.enabled = false\nconf."spark.x" = 4',
        )
        + f"[[spark.tables]]\n{SPARK_TABLE}"
    )
    folder = config.file.parent
    assert config.kafka.common["sasl.username"] == "u"
    assert config.kafka.common["ssl.ca.location"] == f"{folder}/ca.pem"
    assert config.kafka.consumer == {"fetch.min.bytes": 3}
    assert config.kafka.producer == {"linger.ms": 7}
    assert config.spark is not None
    assert config.spark.conf == {"spark.ui.enabled": "false", "spark.x": "4"}
    twice = toml(kafka='sasl.username = "u"\n"sasl.username" = "v"')
    assert problems(twice) == ["kafka.sasl.username: given twice; keep one"]


def test_paths_are_relative_to_the_file_and_addresses_stay(load: Load) -> None:
    """A service started from anywhere must find the same data."""
    tables = """
[[spark.tables]]
name = "a"
path = "data/a"
[[spark.tables]]
name = "b"
path = "s3a://bucket/b"
[[spark.tables]]
name = "c"
table = "catalog.schema.c"
"""
    config = load(toml(top='state_dir = "state"') + tables)
    folder = config.file.parent
    assert config.spark is not None
    assert [t.path for t in config.spark.tables] == [f"{folder}/data/a", "s3a://bucket/b", ""]
    assert config.spark.checkpoints == f"{folder}/data/_checkpoints"
    assert config.state_dir == folder / "state"


def test_values_may_stand_in_files_and_variables(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets belong to neither version control nor `ps`."""
    (tmp_path / "password").write_text("s3cret\n")
    monkeypatch.setenv("BROKERS", "broker:9092")
    text = toml(kafka='sasl.password = { file = "password" }\nclient.id = { env = "BROKERS" }')
    config = load(text)
    assert config.kafka.common["sasl.password"] == "s3cret"
    assert config.kafka.common["client.id"] == "broker:9092"
    assert config.secret_keys == {"kafka.sasl.password", "kafka.client.id"}
    assert "s3cret" not in repr(config)


def test_a_value_that_cannot_be_fetched_is_told_with_its_key(problems: Problems) -> None:
    """Once: that the key is now missing too needs no second line."""
    text = toml(
        kafka='"sasl.password" = { file = "nowhere" }',
        idempotency='redis = { env = "NO_SUCH_VARIABLE" }\nkey = "key"',
    )
    first, second = problems(text)
    assert re.fullmatch(r"kafka\.sasl\.password: /.*/nowhere cannot be read: No such file.*", first)
    assert second == "idempotency.redis: the environment variable NO_SUCH_VARIABLE is not set"


def test_a_handler_topic_may_be_called_like_an_indirection(load: Load) -> None:
    """`env` is a fine name for a topic: where a table is due, nothing is fetched."""
    text = toml(handlers='env = "h:f"').replace('["orders"]', '["env"]')
    assert load(text).handlers == {"env": "h:f"}


def test_properties_that_end_in_file_are_properties(load: Load) -> None:
    """Nested, they look like an indirection."""
    config = load(toml(kafka='sasl.oauthbearer.assertion.file = "jwt"'))
    found = config.kafka.common["sasl.oauthbearer.assertion.file"]
    assert found == f"{config.file.parent}/jwt"


def test_a_secret_is_not_repeated_by_the_line_that_refuses_it(
    problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines end in logs."""
    monkeypatch.setenv("LISTEN", "s3cret")
    [found] = problems(toml(console='listen = { env = "LISTEN" }'))
    assert found.startswith("console.listen: expected an IP address")
    assert "s3cret" not in found


@pytest.mark.parametrize("text", ["0.5ms", "1", "s", "", "-1s", "1.5.2s", " 1s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    """A duration without its unit has been mistaken for milliseconds before."""
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("500ms", "500ms"),
        ("60s", "1m"),
        ("90s", "90s"),
        ("1.5m", "90s"),
        ("1d", "24h"),
        ("0s", "0s"),
    ],
)
def test_a_duration_has_one_spelling(text: str, spelling: str) -> None:
    """It names delay topics: 60s and 1m must be one topic."""
    assert format_duration(parse_duration(text)) == spelling


def uncommented() -> dict[str, Any]:
    """etc/kworker.toml with all that is left out in it."""
    return tomllib.loads(re.sub(r'(?m)^#(?=[\[\w"])', "", ETC.read_text()))


def defaults(section: type[Section]) -> dict[str, Any]:
    """As the file would spell them, of the keys that have a fixed one."""
    fields = section.model_fields.items()
    return {f.alias or name: f.default for name, f in fields if f.default_factory is None}


# Required, or told by the service or the machine.
EXAMPLES = {
    *("name", "handler", "handlers", "state_dir", "instance", "source", "source.topics"),
    *("kafka", "kafka.consumer", "kafka.producer", "workers.processes"),
    *("delivery.results", "dead_letter.topic", "idempotency", "idempotency.redis"),
    *("idempotency.key", "idempotency.prefix", "spark", "spark.conf", "spark.tables"),
    *("spark.tables.name", "spark.tables.path"),
}


def test_the_documented_file_has_every_key_with_its_default() -> None:
    """etc/kworker.toml is what people copy from."""
    documented = uncommented()
    for key in all_keys():
        section = section_of(takes(key[:-1]))
        value: Any = documented
        for part in key:
            assert part in value if isinstance(part, str) else True, key
            value = value[part]
        name = ".".join(part for part in key if isinstance(part, str))
        if name not in EXAMPLES and section and not section_of(takes(key)):
            assert value == defaults(section)[str(key[-1])], key
    assert documented["kafka"]["consumer"] == dict(CONSUMER_DEFAULTS)
    assert documented["kafka"]["producer"] == dict(PRODUCER_DEFAULTS)


def test_the_documented_file_is_valid_bare_and_uncommented(load: Load) -> None:
    """No key that the model has not, no value that it refuses."""
    as_it_is = load(ETC.read_text())
    assert (as_it_is.spark, as_it_is.idempotency) == (None, None)
    everything = load(re.sub(r'(?m)^#(?=[\[\w"])', "", ETC.read_text()))
    assert everything.spark is not None
    assert everything.idempotency is not None


def test_the_documented_file_says_what_the_model_says() -> None:
    """One text for each key, in the file, the schema and docs/configuration.md."""
    comments = documented_comments()
    for key in all_references():
        if key.dotted not in ("kafka.consumer", "kafka.producer", "spark.conf", "handlers"):
            needed = "required: " if key.required else ""
            assert comments[key.dotted].lower() == f"{needed}{key.description}".lower(), key.dotted


def documented_comments() -> dict[str, str]:
    """The comment of each key in etc/kworker.toml, with a full stop."""
    comments, table = {}, ""
    for line in ETC.read_text().splitlines():
        if heading := re.match(r"#?\[{1,2}([\w.]+)\]", line):
            table = f"{heading[1]}."
        elif found := re.match(r'#?"?([\w.]+)"? = .*?  ?# (.*)', line):
            comments[f"{table}{found[1]}"] = found[2].rstrip(".") + "."
    return comments


def test_every_key_has_a_description() -> None:
    """The page, the editors and `kworker config keys` show it."""
    described = {each.dotted: each.description for each in all_references()}
    assert all(text.endswith(".") and " " in text for text in described.values())
    named = [[part for part in key if isinstance(part, str)] for key in all_keys()]
    assert {".".join(key) for key in named} - set(described) == {
        *("source", "kafka", "workers", "delivery", "retry", "dead_letter", "idempotency"),
        *("spark", "spark.tables", "console", "tracing", "log"),
    }


def test_the_schema_has_every_key() -> None:
    """Editors underline what it lacks."""
    schema = file_schema()
    kafka = schema["$defs"][schema["properties"]["kafka"]["$ref"].rpartition("/")[2]]["properties"]
    assert ("bootstrap.servers" in kafka, "common" in kafka) == (True, False)
    for key in all_keys():
        if key[0] == "kafka" and len(key) > 1:
            assert key[1] in kafka
        elif section := section_of(takes(key[:-1])):
            home = schema if len(key) == 1 else schema["$defs"][section.__name__]
            assert key[-1] in home["properties"], key
