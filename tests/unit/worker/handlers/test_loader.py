"""Finding, making and calling the user's handler."""

import asyncio
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kworker import Message
from kworker.config.model import Config
from kworker.core.message import Undecodable
from kworker.errors import ConfigError
from kworker.worker.handlers import loader
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.signature import Batching

Load = Callable[..., Handlers]
SERIAL = itertools.count()
IMPORTS = (
    "from __future__ import annotations\n"
    "import functools\n"
    "from kworker import BatchFailed, Message, batch\n"
    "from pydantic import BaseModel\n"
)
ORDER = "class Order(BaseModel):\n    id: int\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads `handler` of a module with this source; `{module}` stands for its name."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load(source: str, name: str = "handler", **settings: Any) -> Handlers:
        module = f"handlers_{next(SERIAL)}"
        (tmp_path / f"{module}.py").write_text(IMPORTS + source)
        routes = {t: f"{module}:{n}" for t, n in settings.pop("handlers", {}).items()}
        return loader.load(config(tmp_path, f"{module}:{name}" if name else "", routes))

    return load


def config(folder: Path, reference: str, routes: dict[str, str] | None = None) -> Config:
    return Config(
        name="orders",
        handler=reference,
        handlers=routes or {},
        source={"topics": ["orders"]},  # type: ignore[arg-type]
        kafka={"common": {"bootstrap.servers": "127.0.0.1:9092"}},  # type: ignore[arg-type]
        file=folder / "kworker.toml",
    )


def message(value: bytes | None = b'{"id": 7}') -> Message:
    return Message("orders", 0, 5, value=value)


def refused(load: Load, source: str, **settings: Any) -> str:
    """The one line that a person reads."""
    with pytest.raises(ConfigError) as caught:
        load(source, **settings)
    [problem] = caught.value.problems
    assert "\n" not in problem
    assert problem.startswith("handler")
    return problem


def test_a_function_is_given_the_message(load: Load) -> None:
    handlers = load("def handler(message):\n    return message.json()\n")
    assert handlers.of("orders")(message()) == {"id": 7}
    assert not handlers.is_async


def test_a_function_may_say_what_it_takes(load: Load) -> None:
    source = "from kworker import Message\ndef handler(m: Message) -> dict:\n    return m.json()\n"
    assert load(source).of("orders")(message()) == {"id": 7}


def test_a_class_is_made_once_and_closed_once(load: Load) -> None:
    """Its `__init__` opens connections."""
    source = (
        "made, closed = [], []\n"
        "class Handler:\n"
        "    def __init__(self): made.append(self)\n"
        "    def __call__(self, message): return len(made)\n"
        "    def close(self): closed.append(self)\n"
    )
    handlers = load(source, "Handler", handlers={"other": "Handler"})
    assert [handlers.of(t)(message()) for t in ("orders", "other", "orders")] == [1, 1, 1]
    handlers.close()
    module = sys.modules[type(handlers.of("orders")).__module__]
    assert len(module.closed) == 1


def test_a_constructors_exception_passes_through(load: Load) -> None:
    """It may work the next time, unlike a mistake in the file."""
    source = "class Handler:\n    def __init__(self): raise ConnectionError('no')\n"
    with pytest.raises(ConnectionError):
        load(source + "    def __call__(self, message): ...\n", "Handler")


def test_an_async_function_is_an_async_handler(load: Load) -> None:
    handlers = load("async def handler(message):\n    return message.offset\n")
    assert handlers.is_async
    assert asyncio.run(handlers.of("orders")(message())) == 5


def test_an_async_class_is_an_async_handler(load: Load) -> None:
    source = "class Handler:\n    async def __call__(self, message): return message.offset\n"
    handlers = load(source, "Handler")
    assert handlers.is_async
    assert asyncio.run(handlers.of("orders")(message())) == 5


def test_a_typed_handler_is_given_its_model(load: Load) -> None:
    handlers = load(ORDER + "def handler(order: Order):\n    return order.id\n")
    assert handlers.of("orders")(message()) == 7


def test_a_typed_handler_may_have_the_message_too(load: Load) -> None:
    source = ORDER + "def handler(order: Order, message):\n    return order.id, message.offset\n"
    assert load(source).of("orders")(message()) == (7, 5)


def test_a_typed_async_handler_is_given_its_model(load: Load) -> None:
    handlers = load(ORDER + "async def handler(order: Order):\n    return order.id\n")
    assert handlers.is_async
    assert asyncio.run(handlers.of("orders")(message())) == 7


def test_a_typed_method_is_given_its_model(load: Load) -> None:
    source = ORDER + "class Handler:\n    def __call__(self, order: Order): return order.id\n"
    assert load(source, "Handler").of("orders")(message()) == 7


@pytest.mark.parametrize("value", [None, b"", b"{}", b"{", b'{"id": "secret"}', b"\xff"])
def test_an_invalid_model_is_undecodable_and_stays_secret(load: Load, value: bytes | None) -> None:
    handlers = load(ORDER + "def handler(order: Order):\n    return order.id\n")
    with pytest.raises(Undecodable, match="Order") as caught:
        handlers.of("orders")(message(value))
    assert "secret" not in str(caught.value)


def test_further_parameters_with_defaults_are_the_users_own(load: Load) -> None:
    handlers = load("def handler(message, session=3, *, retries=1):\n    return session\n")
    assert handlers.of("orders")(message()) == 3


def test_a_partial_function_is_a_function(load: Load) -> None:
    source = "def f(times, message):\n    return times\nhandler = functools.partial(f, 3)\n"
    assert load(source).of("orders")(message()) == 3


def test_a_decorated_function_is_called_as_what_it_wraps(load: Load) -> None:
    source = (
        ORDER
        + "def twice(f):\n"
        + "    @functools.wraps(f)\n"
        + "    def g(*args):\n"
        + "        return 2 * f(*args)\n"
        + "    return g\n"
        + "@twice\ndef handler(order: Order):\n    return order.id\n"
    )
    assert load(source).of("orders")(message()) == 14


def test_each_topic_has_its_handler(load: Load) -> None:
    source = "def handler(message):\n    return 1\ndef settle(message):\n    return 2\n"
    handlers = load(source, handlers={"payments": "settle"})
    assert [handlers.of(topic)(message()) for topic in ("orders", "payments")] == [1, 2]


def test_a_topic_without_a_handler_is_a_key_error(load: Load) -> None:
    handlers = load("def settle(message): ...\n", name="", handlers={"payments": "settle"})
    with pytest.raises(KeyError):
        handlers.of("orders")


def test_a_class_may_want_to_be_told_of_dead_letters(load: Load) -> None:
    source = (
        "class Handler:\n"
        "    def __call__(self, message): ...\n"
        "    def dead(self, message, error): return message.offset, error\n"
        "def settle(message): ...\n"
    )
    handlers = load(source, "Handler", handlers={"payments": "settle"})
    assert handlers.has_on_dead
    error = ValueError("no")
    dead = handlers.on_dead_of("orders")
    assert dead is not None
    assert dead(message(), error) == (5, error)
    assert handlers.on_dead_of("payments") is None


def test_a_dead_attribute_that_is_no_function_is_ignored(load: Load) -> None:
    source = "class Handler:\n    dead = 0\n    def __call__(self, message): ...\n"
    handlers = load(source, "Handler")
    assert handlers.on_dead_of("orders") is None
    assert not handlers.has_on_dead


# -- batches -------------------------------------------------------------------------------


def batched(handlers: Handlers) -> Batching:
    [batching] = handlers.batchings
    assert handlers.batching_of("orders") is batching
    return batching


def test_a_batch_handler_is_given_the_messages(load: Load) -> None:
    source = (
        "@batch(size=3, wait='1s')\n"
        "def handler(messages: list[Message]): return [m.offset for m in messages]\n"
    )
    batching = batched(load(source))
    assert (batching.size, batching.wait_s) == (3, 1.0)
    item = batching.item(message())
    assert batching.call([item, item], [message()] * 2) == [5, 5]


@pytest.mark.parametrize("annotation", ["", ": list", ": list[Message]", ": list['Message']"])
def test_a_batch_handler_need_not_say_what_it_takes(load: Load, annotation: str) -> None:
    handlers = load(f"@batch()\ndef handler(messages{annotation}): return [messages[0].offset]\n")
    batching = batched(handlers)
    assert batching.call([batching.item(message())], [message()]) == [5]


def test_a_batch_handler_of_models_is_given_models(load: Load) -> None:
    source = ORDER + "@batch()\ndef handler(orders: list[Order]): return [o.id for o in orders]\n"
    batching = batched(load(source))
    assert batching.call([batching.item(message())], [message()]) == [7]
    with pytest.raises(Undecodable):
        batching.item(message(b"{}"))


def test_a_batch_of_models_may_have_the_messages_too(load: Load) -> None:
    source = (
        ORDER
        + "@batch()\ndef handler(orders: list[Order], messages: list[Message]):\n"
        + "    return [(o.id, m.offset) for o, m in zip(orders, messages)]\n"
    )
    batching = batched(load(source))
    assert batching.call([batching.item(message())], [message()]) == [(7, 5)]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (
            "class Handler:\n    @batch(size=2)\n"
            "    def __call__(self, messages): return [m.offset for m in messages]\n",
            "Handler",
        ),
        (
            "@batch(size=2)\ndef f(times, messages): return [m.offset for m in messages]\n"
            "handler = functools.partial(f, 3)\n",
            "handler",
        ),
        (
            "def logged(f):\n    @functools.wraps(f)\n    def g(*args): return f(*args)\n"
            "    return g\n"
            "@logged\n@batch(size=2)\ndef handler(messages):\n"
            "    return [m.offset for m in messages]\n",
            "handler",
        ),
    ],
)
def test_a_batch_handler_may_be_a_method_partial_or_wrapped(
    load: Load, source: str, name: str
) -> None:
    batching = batched(load(source, name))
    assert batching.size == 2
    assert batching.call([message()], [message()]) == [5]


def test_an_async_batch_handler_is_an_async_handler(load: Load) -> None:
    source = "@batch()\nasync def handler(messages): return [m.offset for m in messages]\n"
    handlers = load(source)
    assert handlers.is_async
    assert asyncio.run(batched(handlers).call([message()], [message()])) == [5]
    assert asyncio.run(handlers.of("orders")(message())) == 5


def test_a_batch_handler_can_be_called_for_one_message(load: Load) -> None:
    """As the cell does with a suspect."""
    source = (
        "@batch()\n"
        "def handler(messages):\n"
        "    assert len(messages) == 1\n"
        "    if messages[0].value == b'returns': return [KeyError('its own')]\n"
        "    if messages[0].value == b'raises': raise KeyError('its own')\n"
        "    if messages[0].value == b'stops': raise BatchFailed(0, KeyError('its own'))\n"
        "    return [] if messages[0].value == b'nothing' else [messages[0].offset]\n"
    )
    call = load(source).of("orders")
    assert call(message()) == 5
    for way in (b"returns", b"raises", b"stops"):
        with pytest.raises(KeyError, match="its own"):
            call(message(way))
    with pytest.raises(TypeError, match="0 outcomes for 1"):
        call(message(b"nothing"))


def test_batch_and_plain_handlers_share_a_process(load: Load) -> None:
    source = "@batch()\ndef handler(messages): ...\ndef settle(message): return 2\n"
    handlers = load(source, handlers={"payments": "settle"})
    assert handlers.batching_of("payments") is None
    assert handlers.of("payments")(message()) == 2
    batched(handlers)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "@batch(wait='soon')\ndef handler(messages): ...\n",
            "cannot import .*a duration",
        ),
        ("@batch(size=0)\ndef handler(messages): ...\n", "cannot import .*size is 0"),
        ("@batch\ndef handler(messages): ...\n", "cannot import .*TypeError"),
        ("@batch(size=2001)\ndef handler(messages): ...\n", "workers.in_flight is 2000"),
    ],
)
def test_a_batch_handler_that_cannot_work_is_one_line(load: Load, source: str, words: str) -> None:
    assert re.search(words, refused(load, source))


def test_a_dotted_name_is_followed(load: Load) -> None:
    source = "class Orders:\n    @staticmethod\n    def notify(message): return 9\n"
    assert load(source, "Orders.notify").of("orders")(message()) == 9


def test_a_module_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot import 'nonesuch'.*No module named 'nonesuch'"):
        loader.load(config(tmp_path, "nonesuch:notify"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def other(message): ...\n", "nothing callable named 'handler'"),
        ("handler = 5\n", "nothing callable named 'handler'"),
        ("def handler(message:\n", "cannot import .*SyntaxError"),
        ("import nonesuch\n", "cannot import .*No module named 'nonesuch'"),
        ("raise ValueError('first\\nsecond')\n", "cannot import .*ValueError: first"),
        ("def handler(): ...\n", "no parameter for the record"),
    ],
)
def test_a_permanent_load_error_is_one_line(load: Load, source: str, words: str) -> None:
    """Exit code 78, with the next step, and no traceback."""
    assert re.search(words, refused(load, source))


def test_async_and_plain_handlers_cannot_share_a_process(load: Load) -> None:
    source = "def handler(message): ...\nasync def settle(message): ...\n"
    assert "async def" in refused(load, source, handlers={"payments": "settle"})
