"""Runs a handler over records, as the service would."""

import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.core.message import Fields, RawMessage
from kworker.log.running import NamingLogRecord
from kworker.message import Message
from kworker.testing.memory_service import MemoryService
from kworker.testing.messages import TOPIC, as_message
from kworker.testing.report import RunReport, dead_record, delayed_runs, published_result
from kworker.worker.assembly import make_intake
from kworker.worker.handlers import loader

LIMIT_S = 30 * 86_400.0
TIMEOUT_S = 60.0


def run(
    handler: Callable[..., Any] | None,
    records: Iterable[Any],
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    limit_s: float = LIMIT_S,
    timeout_s: float = TIMEOUT_S,
) -> RunReport:
    """Runs records through a handler until each has ended, and reports what became of them.

    The real worker and the real delay process run here, with Kafka and Redis in memory. While a
    handler runs, their clock keeps pace with the true one; while records only wait, it jumps ahead.
    There are no other processes: a handler that ends its process ends the test. Lines that the
    handler logs go where the test's lines go, to `caplog` for example; each has the attribute
    `kworker`, with the fields that the service's log would have: `record`, `attempt`.

    Args:
        handler: A function, a class or an instance, as the configuration could name one. None takes
            the handlers that `config` names.
        records: Values, or messages made by `message`, which may name a topic and a partition.
            Their `offset`, `attempt` and `last` are ignored: offsets are assigned in order, as
            Kafka does, and the service counts the runs.
        config: The path of a `kworker.toml`. Without it, the defaults apply.
        settings: Tables whose values replace those of the file and of the environment, such as
            `{"retry": {"delays": ["10s", "1h"]}}`.
        limit_s: Seconds that may pass on the service's clock.
        timeout_s: Seconds that may pass on the true clock.

    Raises:
        AssertionError: a record has not ended within the limits, or has a topic that the service
            does not read.
        ConfigError: the configuration or the handler's signature is wrong.
        TypeError: there is neither a handler nor a configuration, or `records` is a
            mapping, text or bytes instead of a list.
    """
    if handler is None and config is None:
        raise TypeError("run: give a handler, or a config that names one")
    if isinstance(records, Mapping | str | bytes):
        raise TypeError("run: records is a list of records; put a single one into a list")
    given = [as_message(record) for record in records]
    with tempfile.TemporaryDirectory(prefix="kworker-testing-") as folder:
        loaded = _configured(config, settings or {}, given, Path(folder))
        if config is not None:
            _make_importable(loaded)
        service = _served(loaded, handler, given, limit_s, timeout_s)
    return _report(service, loaded)


def _served(
    config: Config,
    handler: Callable[..., Any] | None,
    given: list[Message],
    limit_s: float,
    timeout_s: float,
) -> MemoryService:
    """Runs a service over all records, from the opening of its handlers to their close."""
    handlers = loader.load(config) if handler is None else loader.of_callable(config, handler)
    handlers.open(timeout_s).result()
    try:
        service = MemoryService(config, handlers, [_raw(record, config) for record in given])
        _run(service, limit_s, timeout_s)
    except BaseException:
        handlers.abandon()
        raise
    handlers.close()
    return service


def _run(service: MemoryService, limit_s: float, timeout_s: float) -> None:
    made_by = logging.getLogRecordFactory()
    logging.setLogRecordFactory(NamingLogRecord)
    try:
        service.run(limit_s, timeout_s)
    finally:
        service.stop()
        logging.setLogRecordFactory(made_by)


def _configured(
    config: str | Path | None, settings: Mapping[str, Any], given: list[Message], folder: Path
) -> Config:
    if config is not None:
        loaded = toml_file.load(config, dict(settings))
    else:
        topics = list(dict.fromkeys(record.topic for record in given)) or [TOPIC]
        tables: dict[str, Any] = {
            "name": "test",
            "handler": "handlers:handle",  # not imported where a handler is given
            "source": {"topics": topics},
            "kafka": {"bootstrap.servers": "memory:9092"},
        }
        loaded = toml_file.from_tables(tables, Path.cwd() / "kworker.toml", {}, dict(settings))
    return loaded.model_copy(update={"state_dir": folder})


def _make_importable(config: Config) -> None:
    """Makes imports find the modules in the configuration's folder, not others of the same name.

    A test run may have services in several folders, each with a `handlers.py`.
    """
    folder = config.file.parent
    toml_file.import_path(config)
    sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    ours = {name for name in _modules_of(config) if _is_in(folder, name)}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ours and file and folder not in Path(file).parents:
            del sys.modules[name]


def _is_in(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").exists() or (folder / module).is_dir()


def _modules_of(config: Config) -> set[str]:
    """Returns the top-level modules of all handlers, such as `app` for `app.orders:handle`."""
    references = [config.handler, *config.handlers.values()]
    return {reference.partition(":")[0].partition(".")[0] for reference in references}


def _raw(record: Message, config: Config) -> RawMessage:
    """Returns the record to write; without a topic, it is written to the first source topic."""
    sources, topic = config.source.topics, record.topic
    if topic == TOPIC and sources and TOPIC not in sources:
        topic = sources[0]
    if not make_intake(config).is_source(topic):
        raise AssertionError(
            f'the service does not read the topic "{topic}": name one of its source topics'
        )
    at = (topic, record.partition, record.offset)
    return Fields(at, record.timestamp, record.key, record.value, record.headers)


def _report(service: MemoryService, config: Config) -> RunReport:
    kafka = service.kafka
    results = dict.fromkeys([config.delivery.results, *config.delivery.topics])
    delays = dict.fromkeys(config.retry_topic(delay) for delay in config.retry.delays)
    published = [published_result(raw) for topic in results for raw in kafka.records(topic)]
    dead = [dead_record(raw) for raw in kafka.records(config.dead_letter.topic)]
    return RunReport(
        sorted(published, key=lambda each: each.source.place),
        delayed_runs(raw for topic in delays for raw in kafka.records(topic)),
        sorted(dead, key=lambda each: each.source.place),
        service.committed(),
        service.clock.passed_s,
    )
