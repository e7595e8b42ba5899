"""What handlers may take, what it is built from, and how each other handler is refused."""

import itertools
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kworker.core.message import Undecodable
from kworker.message import Message
from kworker.worker.handlers import loader
from kworker.worker.handlers.loader import read_signatures
from kworker.worker.handlers.signature import HandlerSignature
from kworker.worker.handlers.unfit_handler import UnfitHandler

Read = Callable[..., HandlerSignature]
SERIAL = itertools.count()
TEXTS = "from __future__ import annotations\n"
IMPORTS = (
    "import functools\nfrom collections.abc import Sequence\nfrom dataclasses import dataclass\n"
    "from decimal import Decimal\nfrom typing import TYPE_CHECKING, Any\n"
    "from kworker import Message, batch\nfrom pydantic import BaseModel\n"
)
TYPES = """
@dataclass
class Item:
    sku: str
    count: int = 1

@dataclass(frozen=True, slots=True)
class Order:
    id: int
    items: list[Item]
    total: Decimal | None = None

class Model(BaseModel):
    id: int

class Odd: ...

@dataclass
class Session:
    odd: Odd

@dataclass
class Lost:
    order: Nowhere
"""


@pytest.fixture(params=[TEXTS, ""], ids=["annotations as text", "annotations"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads the signature of `name` in a module with this source, as `check` and a start do."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def read(source: str, name: str = "notify") -> HandlerSignature:
        module = f"signatures_{next(SERIAL)}"
        types = TYPES if request.param else TYPES.replace("Nowhere", "'Nowhere'")
        (tmp_path / f"{module}.py").write_text(request.param + IMPORTS + types + source)
        found = loader.find(f"{module}:{name}")
        return read_signatures({f"handlers:{name}": found}, 2000)[f"handlers:{name}"]

    return read


def message(value: bytes | None) -> Message:
    return Message("orders", 0, 5, value=value)


# -- what is built --------------------------------------------------------------------


def returned(read: Read, takes: str, value: bytes | None) -> Any:
    """What a handler is given that takes this."""
    return read(f"def notify({takes}): ...\n").call_of(lambda *given: given)(message(value))


def test_a_dict_is_the_object_of_the_value(read: Read) -> None:
    assert returned(read, "order: dict", b'{"a": [1, null]}') == ({"a": [1, None]},)
    assert returned(read, "order: dict[str, int]", b'{"a": 1}') == ({"a": 1},)


def test_a_dataclass_is_built_with_all_that_it_holds(read: Read) -> None:
    [order] = returned(read, "order: Order", b'{"id": 7, "items": [{"sku": "x"}], "total": "1.10"}')
    assert (order.id, order.items[0].sku, order.items[0].count) == (7, "x", 1)
    assert order.total == Decimal("1.10")


def test_a_model_is_built_by_its_own_rules(read: Read) -> None:
    """Pydantic's: unknown fields are ignored, and a number may be text."""
    [order] = returned(read, "order: Model", b'{"id": "7", "more": 1}')
    assert order.id == 7


@pytest.mark.parametrize("takes", ["order: dict", "order: Order", "order: Model"])
def test_a_value_may_come_with_its_message(read: Read, takes: str) -> None:
    _, given = returned(read, f"{takes}, given: Message", b'{"id": 7, "items": []}')
    assert given.offset == 5


@pytest.mark.parametrize("takes", ["dict", "Order", "Model"])
def test_a_null_value_fits_only_a_type_that_says_so(read: Read, takes: str) -> None:
    """A tombstone, or the JSON text null."""
    for value in (None, b"null"):
        assert returned(read, f"order: {takes} | None", value) == (None,)
        with pytest.raises(Undecodable, match=rf"null, which does not fit {takes}; {takes} | None"):
            returned(read, f"order: {takes}", value)


@pytest.mark.parametrize(
    ("takes", "value", "told"),
    [
        ("dict", b"[1]", "the value does not fit dict at its top level: Input should be an object"),
        ("dict", b"", "the value does not fit dict at its top level: Invalid JSON: EOF"),
        ("dict", b"\xff", "the value does not fit dict at its top level: Invalid JSON"),
        ("dict[str, int]", b'{"a": "1"}', "the value does not fit dict at a: Input should be a va"),
        ("Order", b'{"items": []}', "the value does not fit Order at id: Field required"),
        (
            "Order",
            b'{"id": 1, "items": [], "x": 2}',
            "the value does not fit Order at x: no such f",
        ),
        ("Order", b'{"id": "1", "items": []}', "the value does not fit Order at id: Input should"),
        ("Order", b'{"id": true, "items": []}', "the value does not fit Order at id: Input should"),
        (
            "Order",
            b'{"id": 1, "items": [{"sku": "x"}, {"sku": "y", "n": 1}]}',
            "the value does not fit Order at items.1.n: no such field",
        ),
        ("Order", b"[]", "the value does not fit Order at its top level: Input should be an obj"),
        ("Model", b'{"id": "secret"}', "the value does not fit Model at id: Input should be a val"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(
    read: Read, takes: str, value: bytes, told: str
) -> None:
    """And not by its content, which may be secret."""
    with pytest.raises(Undecodable) as caught:
        returned(read, f"order: {takes}", value)
    assert str(caught.value).startswith(told)
    assert "secret" not in str(caught.value)


def test_a_batch_is_a_list_of_what_is_built(read: Read) -> None:
    for takes, expected in (("list[dict]", {"id": 7}), ("Sequence[Message]", None)):
        batching = read(f"@batch(size=2)\ndef notify(orders: {takes}): ...\n").batching_of(list)
        assert batching
        item = batching.item(message(b'{"id": 7}'))
        assert item == expected or isinstance(item, Message)


@pytest.mark.parametrize(
    "source",
    [
        "def notify(it): ...\n",
        "def notify(it: Any): ...\n",
        "def notify(it: object): ...\n",
        "def notify(it: 'Message'): ...\n",
        "def notify(it, *rest, retries=1, **more): ...\n",
        "def notify(it, /, *, retries=1): ...\n",
        "async def notify(it: Message): ...\n",
        "notify = functools.partial(lambda times, it: ..., 3)\n",
        "notify = lambda it: ...\n",
        "class notify:\n    def __call__(self, it): ...\n",
        "class notify:\n    @staticmethod\n    def __call__(it): ...\n",
        "class notify(dict):\n    def __call__(self, it): ...\n",
        "class notify:\n    async def __call__(self, it): ...\n    async def open(self): ...\n"
        "    async def close(self): ...\n    async def dead(self, it, error): ...\n",
        "class notify:\n    def __init__(self, url='x', *more): ...\n"
        "    def __call__(self, it): ...\n    def open(self, path): ...\n    close = 5\n",
        "class Base:\n    def __call__(self, it): ...\nclass notify(Base): ...\n",
        "class Notify:\n    def __call__(self, it): ...\nnotify = Notify()\n",
        "def logged(f):\n    @functools.wraps(f)\n    def g(*args): ...\n    return g\n"
        "@logged\ndef notify(it: Message): ...\n",
        "@batch()\ndef notify(them): ...\n",
        "@batch()\ndef notify(them: list): ...\n",
        "@batch()\nasync def notify(them: Sequence[Message]): ...\n",
    ],
)
def test_any_callable_with_one_parameter_handles_messages(read: Read, source: str) -> None:
    signature = read(source)
    assert (signature.value, signature.with_message) == (None, False)


def test_a_message_imported_for_type_checkers_is_the_message(read: Read) -> None:
    """And does not hide the model: the handler would be given a message in its place."""
    hidden = "del Message\nif TYPE_CHECKING:\n    from kworker import Message\n"
    assert read(f"{hidden}def notify(it: 'Message'): ...\n").value is None
    both = read(f"{hidden}def notify(it: Order, them: 'Message') -> 'Nothing': ...\n")
    assert both.value is not None
    assert both.with_message


# -- what is refused ------------------------------------------------------------------

MESSAGE = "def notify(message: Message)"
DICT_STANDS_FOR = ", where a dataclass or a pydantic model may stand for dict"
CALL = "    def __call__(self, message): ...\n"
REFUSED = [
    ("def notify(): ...", "has no parameter for the record", f"write: {MESSAGE}"),
    ("def notify(*args): ...", "has no parameter for the record", f"write: {MESSAGE}"),
    ("def notify(session=None): ...", "has no parameter for the record", f"write: {MESSAGE}"),
    (
        "async def notify(*, message): ...",
        "has no parameter for the record",
        f"write: async {MESSAGE}",
    ),
    (
        "def notify(a, b, c): ...",
        "needs 3 arguments (a, b, c), but kworker passes 2 at most",
        f"write: {MESSAGE}, or def notify(a: dict, b: Message); give the others defaults",
    ),
    (
        "def notify(it: Order, *, session): ...",
        "needs session by keyword, which kworker does not pass",
        "give defaults, such as: def notify(it: Order, *, session=None)",
    ),
    (
        "def notify(a, b): ...",
        "has two parameters, a and b, and no type for the first",
        f"write: def notify(a: dict, b: Message){DICT_STANDS_FOR}",
    ),
    (
        "def notify(message: Message, order: Order): ...",
        "takes the message first, but order: Order must come first",
        "write: def notify(order: Order, message: Message)",
    ),
    (
        "def notify(order: Order, session: Odd): ...",
        "has the second parameter session: Odd, where kworker passes the message",
        "write: def notify(order: Order, message: Message); give others defaults",
    ),
    (
        "def notify(order: int): ...",
        "takes order: int, a type that kworker cannot build from a record",
        f"write: {MESSAGE}, or def notify(order: dict){DICT_STANDS_FOR}",
    ),
    (
        "def notify(it: Message | None): ...",
        "takes it: Message | None, a type that kworker cannot build from a record",
        f"write: {MESSAGE}, or def notify(it: dict){DICT_STANDS_FOR}",
    ),
    (
        "def notify(order: 'Ordr'): ...",
        "takes order: Ordr, but {module} does not define Ordr",
        "define or import Ordr at the top of {module}, not in a function, nor under TYPE_CHECKING",
    ),
    (
        "def notify(order: 'functools.nothing'): ...",
        "takes order: functools.nothing, whose annotation is not a type (AttributeError)",
        f"write: {MESSAGE}",
    ),
    (
        "def notify(order: Session): ...",
        "takes order: Session, which pydantic cannot build: Unable to generate pydantic-core schema"
        " for <class '{module}.Odd'>",
        f"change that type, or write: {MESSAGE}",
    ),
    (
        "def notify(order: Lost): ...",
        "takes order: Lost, which pydantic cannot build: name 'Nowhere' is not defined",
        f"change that type, or write: {MESSAGE}",
    ),
    (
        "def notify(message):\n    yield message",
        "is a generator, because of its yield",
        "return a list of results instead",
    ),
    (
        "async def notify(message):\n    yield message",
        "is a generator, because of its yield",
        "return a list of results instead",
    ),
    (
        "notify = getattr",
        "has no signature that Python can read, perhaps because it is written in C",
        f"call it in a function of yours: {MESSAGE}",
    ),
    (
        "def notify(orders: list[Order]): ...",
        "takes a list (orders: list[Order]), but is not marked as a batch handler",
        "write @batch() above it: def notify(orders: list[Order])",
    ),
    (
        "def notify(orders: list): ...",
        "takes a list (orders: list), but is not marked as a batch handler",
        "write @batch() above it: def notify(orders: list[Message])",
    ),
    (
        "@batch()\ndef notify(order: Order): ...",
        "takes order: Order, but a batch handler takes lists",
        "write: def notify(order: list[Order])",
    ),
    (
        "@batch()\nasync def notify(orders: tuple): ...",
        "takes orders: tuple, but a batch handler takes lists",
        "write: async def notify(messages: list[Message])",
    ),
    (
        "@batch()\ndef notify(a, b): ...",
        "has two parameters, a and b, and no type for the first",
        f"write: def notify(a: list[dict], b: list[Message]){DICT_STANDS_FOR}",
    ),
    (
        "@batch()\ndef notify(numbers: list[int]): ...",
        "takes numbers: list[int], a type that kworker cannot build from a record",
        "write: def notify(messages: list[Message]), or def notify(numbers: list[dict])"
        f"{DICT_STANDS_FOR}",
    ),
    (
        "@batch(size=2001)\ndef notify(messages): ...",
        "never gets a full batch of 2001 records, because workers.in_flight is 2000",
        "raise it, or lower the batch's size",
    ),
    (
        "class notify: ...",
        "is a class without a method __call__",
        "write: def __call__(self, message: Message)",
    ),
    (
        "class notify:\n    def __call__(self): ...",
        "has no parameter for the record",
        "write: def __call__(self, message: Message)",
    ),
    (
        f"class notify:\n    def __init__(self, url, *, size): ...\n{CALL}",
        "is a class whose __init__ needs url, size",
        "give defaults, since kworker creates it without arguments",
    ),
    (
        f"class notify:\n    async def open(self): ...\n{CALL}",
        "has open() as `async def`, but its __call__ is not async",
        "make __call__ `async def`, too, or open what it needs in __init__",
    ),
    (
        f"class notify:\n    async def close(self): ...\n{CALL}",
        "has close() as `async def`, but its __call__ is not async",
        "make __call__ `async def`, too, or write `def close`",
    ),
    (
        f"class notify:\n    async def dead(self, message, error): ...\n{CALL}",
        "has dead() as `async def`, but its __call__ is not async",
        "make __call__ `async def`, too, or write `def dead`",
    ),
    (
        f"class notify:\n    async def open(self, url): ...\n    async {CALL.strip()}\n",
        "has a method open that does not take the arguments that kworker passes",
        "write: async def open(self)",
    ),
    (
        f"class notify:\n    def close(self, wait): ...\n{CALL}",
        "has a method close that does not take the arguments that kworker passes",
        "write: def close(self)",
    ),
    (
        f"class notify:\n    def dead(self, message): ...\n{CALL}",
        "has a method dead that does not take the arguments that kworker passes",
        "write: def dead(self, message: Message, error: BaseException)",
    ),
]


@pytest.mark.parametrize(("source", "problem", "step"), REFUSED)
def test_an_unfit_handler_is_refused_with_what_to_write(
    read: Read, source: str, problem: str, step: str
) -> None:
    """A start would run it once for each record, or try for ever to create it."""
    with pytest.raises(UnfitHandler) as caught:
        read(f"{source}\n")
    module = f"signatures_{next(SERIAL) - 1}"
    told = [text.replace("{module}", module) for text in (problem, step)]
    assert [caught.value.problem, caught.value.step] == told
    assert str(caught.value) == f"handler: handlers:notify {told[0]}; {told[1]}"


def test_a_class_is_checked_before_it_is_created(read: Read) -> None:
    """`check` must open no connection, and a start none that it cannot use."""
    source = "class notify:\n    def __init__(self): raise ConnectionError\n"
    assert not read(f"{source}{CALL}").is_async
    with pytest.raises(UnfitHandler):
        read(f"{source}    def __call__(self): ...\n")


def test_handlers_of_two_kinds_are_refused_by_name() -> None:
    async def waits(message: Message) -> None: ...

    def computes(message: Message) -> None: ...

    with pytest.raises(UnfitHandler) as caught:
        read_signatures({"a:waits": waits, "b:computes": computes}, 10)
    assert str(caught.value) == (
        "handler: b:computes is `def`, and a:waits is `async def`: they cannot share a process;"
        " make both of one kind, or run two services"
    )
