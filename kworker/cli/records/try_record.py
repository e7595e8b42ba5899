"""`kworker try`: runs one record through the handler, here, and writes nothing."""

import asyncio
import concurrent.futures
import json
import os
import re
import sys
import time
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.cli.records.handler_trial import HandlerTrial, as_data, lines
from kworker.cli.text import printable
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.config.topics import own_topics
from kworker.core.duration import format_duration
from kworker.core.failure import Failure
from kworker.core.headers import Envelope, Forged, without_foreign
from kworker.core.message import Fields, RawMessage, headers_of
from kworker.core.outcome import Failed, Outcome, Succeeded, outputs_of
from kworker.core.record import Partition, Record, records_of
from kworker.errors import ExitCode, KworkerError, UsageError
from kworker.log.running import ThreadCall, this_thread

if TYPE_CHECKING:
    from kworker.worker.handlers.invocation import Invoke
    from kworker.worker.handlers.loaded_handlers import Handlers

app = typer.Typer()
TIMEOUT_S = 20.0
_CALLERS = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).parents[2],
        Path(asyncio.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)
_PLACE = re.compile(r"([\w.-]+):(\d+):(\d+)")


RecordArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECORD",
        help="TOPIC:PARTITION:OFFSET of a record in Kafka, or a file with its value;"
        " - reads the value from stdin.",
    ),
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic", "-t", help="The source topic of a value.", show_default="the first one"
    ),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="The key of a value.")]
AttemptOption = Annotated[
    int | None, typer.Option(min=1, help="Run it as this attempt.", show_default="1")
]
PdbOption = Annotated[
    bool, typer.Option("--pdb", help="Open the debugger where the handler raised.")
]


@app.command("try", rich_help_panel="Records")
def try_(
    record: RecordArgument,
    config: ConfigOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    attempt: AttemptOption = None,
    debug: PdbOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one record through the handler in this process, and show what would be published.

    Example: [bold]kworker try orders:3:1042[/bold], or [bold]kworker try order.json --pdb[/bold]

    Nothing is written to Kafka or Redis and no position changes, except by the handler's own
    code. A record of the dead-letter, requeue or a delay topic runs as the source record
    that it was. Exit code 1 means that the handler raised. With source.tombstones = "skip",
    nothing is run for a record without a value.
    """
    from kworker import log

    loaded = toml_file.load(config)
    log.configure(loaded.log)
    made = _record(loaded, record, topic, key)
    if attempt is not None:
        made.attempt = attempt
    if made.raw.value() is None and loaded.source.tombstones == "skip":
        trial = HandlerTrial(made.source, made.attempt, took_s=0.0, skipped=True)
    else:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the handler prints
            trial = _run(loaded, _handlers(loaded), made)
    if as_json:
        typer.echo(json.dumps(as_data(trial, loaded)))
    else:
        for line in lines(trial, loaded):
            typer.echo(line)
    if trial.error is not None:
        if debug:
            import pdb  # noqa: T100 - asked for

            pdb.post_mortem(trial.error.__traceback__)
        raise typer.Exit(ExitCode.FAILURE)


# -- the record -------------------------------------------------------------------------


def _record(config: Config, text: str, topic: str | None, key: str | None) -> Record:
    if (place := _PLACE.fullmatch(text)) and not Path(text).exists():
        if topic is not None or key is not None:
            raise UsageError(
                "try: --topic and --key go with a value from a file or stdin; a"
                " record in Kafka already has a topic and a key"
            )
        return _fetched(config, place[1], int(place[2]), int(place[3]))
    name = topic or next(iter(config.source.topics), "")
    if not name:
        raise UsageError("--topic: missing; the source is a pattern, so name one of its topics")
    try:
        value = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{text}: {error.strerror}; expected TOPIC:PARTITION:OFFSET or a file"
        ) from None
    now_ms = int(time.time() * 1000)
    raw = Fields((name, 0, 0), now_ms, None if key is None else os.fsencode(key), value, ())
    return _of(raw)


def _of(raw: RawMessage) -> Record:
    partition = Partition(raw.topic(), raw.partition(), 1, 0, None, b"")
    return records_of(partition, (raw.offset(),), (None,), (len(raw),), (raw,))[0]


def _fetched(config: Config, topic: str, partition: int, offset: int) -> Record:
    """Reads a record from Kafka.

    A record of a delay topic, the requeue topic or the dead-letter topic is returned as the source
    record that it was. Raises UsageError if there is no record at this offset. Raises KworkerError
    if the record's headers cannot be read, or if kworker did not write the record although the
    topic is one of kworker's own (except the results topic).
    """
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader

    place = f"{topic}:{partition}:{offset}"
    known = Admin(admin_properties(config), timeout_s=TIMEOUT_S).topics([topic])
    if topic not in known or partition >= known[topic].partitions:
        raise UsageError(f"{place}: no such topic or partition")
    reader = TopicReader(admin_properties(config), config.name, timeout_s=TIMEOUT_S)
    with closing(reader):
        found = next(reader.records(topic, {partition: range(offset, offset + 1)}), None)
    if found is None or found.offset() != offset:
        raise UsageError(
            f"{place}: no record at this offset; it may have been deleted, or the"
            " offset is a transaction marker"
        )
    [headers], unreadable = headers_of([found])
    if unreadable:
        raise KworkerError(f"the headers of {place} cannot be read: {unreadable[0]}")
    stamp = found.timestamp()[1]
    record = _of(
        Fields((topic, partition, offset), stamp, found.key(), found.value(), tuple(headers or ()))
    )
    if topic in own_topics(config) and topic != config.delivery.results:
        try:
            envelope = Envelope.open(headers or ())
            if topic == config.dead_letter.topic:
                envelope = replace(envelope, carried=without_foreign(envelope.carried))
            record.comes_again(envelope, 0)
        except Forged as problem:
            raise KworkerError(
                f"{place}: only kworker may write to this topic, but it did not write this record:"
                f" {problem}"
            ) from None
    return record


# -- the run ----------------------------------------------------------------------------


def _run(config: Config, handlers: "Handlers", record: Record) -> HandlerTrial:
    source, attempt = record.source, record.attempt
    invoke = _invoke(config, handlers)
    began = time.monotonic()
    try:
        outcome = invoke(record, time.monotonic_ns(), this_thread())
        took_s = time.monotonic() - began
        assert isinstance(outcome, Succeeded)
        return HandlerTrial(source, attempt, took_s, results=outputs_of(outcome))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the handler's failure is what is shown
        took_s = time.monotonic() - began
        error.__traceback__ = _from_users_code(error.__traceback__)
        return HandlerTrial(
            source, attempt, took_s, error=error, next=_next(config, error, attempt)
        )
    finally:
        _close(handlers)


def _handlers(config: Config) -> "Handlers":
    """Loads and opens handlers.

    Raises KworkerError, with the stack, if a class's `__init__` or `open` raises.
    """
    from kworker.worker.handlers.loader import load

    try:
        handlers = load(config)
        handlers.open(config.workers.handler_timeout).result()
        return handlers
    except KworkerError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        error.__traceback__ = _from_users_code(error.__traceback__)
        stack = "".join(f"  {line}\n" for line in Failure.in_full(error).stack.splitlines())
        raise KworkerError(f"the handler's class cannot be created:\n{printable(stack)}") from None


def _close(handlers: "Handlers") -> None:
    try:
        handlers.close()
    except Exception as error:  # noqa: BLE001 - the run is over, and is shown all the same
        typer.echo(f"kworker: the handler's close() raised {Failure.of(error)}", err=True)


def _invoke(config: Config, handlers: "Handlers") -> "Invoke":
    from kworker.worker.handlers.invocation import make_async_invoke, make_invoke
    from kworker.worker.handlers.pool_factory import make_encoder
    from kworker.worker.topic_limits import TopicLimits

    written = [config.delivery.results, *config.delivery.topics]
    limits = TopicLimits(written)
    limits.update(dict.fromkeys(written, sys.maxsize), dict.fromkeys(written, 1))
    encoder = make_encoder(config, limits)
    timeout_s, attempts = config.workers.handler_timeout, len(config.retry.delays) + 1
    if not handlers.is_async:
        return make_invoke(handlers, encoder, timeout_s, attempts)
    invoke = make_async_invoke(handlers, encoder, timeout_s, attempts)

    async def caught(record: Record, began_ns: int) -> Outcome:
        try:
            return await invoke(record, began_ns)
        except BaseException as error:  # noqa: BLE001 - SystemExit would interrupt the loop
            return Failed(error)

    def run(record: Record, began_ns: int, _: ThreadCall) -> Outcome:
        outcome = handlers.loop.run(lambda: caught(record, began_ns)).result()
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    return run


def _from_users_code(frames: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that begins in the user's code; None if there is none."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_CALLERS):
        frames = frames.tb_next
    return frames


def _next(config: Config, error: BaseException, attempt: int) -> str:
    """Returns a text that says what a worker would do after this exception."""
    from kworker.worker.retries.policy import GiveUpRetrying, RetryPolicy

    retry = config.retry
    failure = Failure.of(error)
    if failure.kind == "unavailable":
        return f"all records wait until {failure.name} is available; no attempt is counted"
    policy = RetryPolicy(tuple(retry.delays), frozenset(retry.never), retry.mode == "hold")
    match policy.decide(failure, attempt):
        case GiveUpRetrying(reason):
            return f"a dead letter in {config.dead_letter.topic}, reason {reason}"
        case again:
            where = "in memory" if again.delay_s is None else config.retry_topic(again.delay_s)
            number = f"attempt {again.attempt} of {len(retry.delays) + 1}"
            return f"waits {format_duration(again.after_s)} in {where}, then {number}"
