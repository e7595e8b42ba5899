"""Handler classes: their methods beside `__call__`, and the classes that kworker refuses."""

import inspect
from dataclasses import dataclass
from typing import Any

from kworker.worker.handlers.parameters import method_of, needed_parameters
from kworker.worker.handlers.unfit_handler import Definition


@dataclass(frozen=True, slots=True)
class _Hook:
    """A method that a handler class may have beside `__call__`.

    If this method is `async def` and `__call__` is not, kworker refuses the class with an error.
    `instead` is then the last part of the error's advice.
    """

    name: str
    arguments: tuple[str, ...]
    instead: str

    @property
    def line(self) -> str:
        return f"def {self.name}({', '.join(('self', *self.arguments))})"


_HOOKS = (
    _Hook("open", (), "open what it needs in __init__"),
    _Hook("close", (), "write `def close`"),
    _Hook("dead", ("message: Message", "error: BaseException"), "write `def dead`"),
)


def check_class(definition: Definition, found: type) -> None:
    """Raises UnfitHandler if kworker cannot create an instance of a class, or call its methods.

    `definition` describes the `def` line of the class's method `__call__`.
    """
    try:
        needed = [parameter.name for parameter in needed_parameters(found)]
    except ValueError:  # it inherits from a class that is written in C
        needed = []
    if needed:
        raise definition.refusal(
            f"is a class whose __init__ needs {', '.join(needed)}",
            "give defaults, since kworker creates it without arguments",
        )
    for hook in _HOOKS:
        if callable(method := method_of(found, hook.name)):
            _check_hook(definition, hook, method)


def opens_on_loop(target: Any) -> bool:
    """Returns True if an instance has an `async def open`, which the handlers' loop must await.

    kworker does not call a plain `def open`, since `__init__` can do the same work.
    """
    return inspect.iscoroutinefunction(getattr(target, "open", None))


def _check_hook(definition: Definition, hook: _Hook, method: Any) -> None:
    is_async = inspect.iscoroutinefunction(method)
    if is_async and not definition.is_async:
        raise definition.refusal(
            f"has {hook.name}() as `async def`, but its __call__ is not async",
            f"make __call__ `async def`, too, or {hook.instead}",
        )
    if hook.name == "open" and not is_async:
        return
    try:
        inspect.signature(method).bind(*hook.arguments)
    except ValueError:
        pass  # written in C
    except TypeError:
        line = f"async {hook.line}" if is_async else hook.line
        raise definition.refusal(
            f"has a method {hook.name} that does not take the arguments that kworker passes",
            f"write: {line}",
        ) from None
