"""The traces that a handler may leave in the task that has run it."""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from gc import get_referents
from operator import is_not
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

from kworker.log.running import TASK


class TaskTraces:
    """Tells whether handlers have left anything in a task, which must then not run another record.

    A handler may set context variables, have the task cancelled, add a callback for its end, name
    it, give it attributes, or keep it, for example as the key of a dictionary. What a task factory
    has given to a task, such as a scope for traces, is meant for one record, too. Owned by the
    task.
    """

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = task
        self._name = task.get_name()
        self._context = self._first = Context()
        self._references = self._referents = self._variables = 0
        self._has_factory = False

    def begin(self) -> None:
        """Notes how the task is before its first handler. Called by the running task itself.

        A method of its own, since the call of a constructor has references to the task.
        """
        TASK.set(None)
        self._first = copy_context()
        # The task's own, of which Python 3.11 only gives copies. A task of a factory may have none.
        contexts = [r for r in get_referents(self._task) if type(r) is Context]
        self._context = contexts[0] if contexts else self._first
        self._has_factory = asyncio.get_running_loop().get_task_factory() is not None
        self._variables = len(self._context)
        self._references = getrefcount(self._task) + getweakrefcount(self._task)
        self._referents = len(get_referents(self._task))

    def left(self) -> bool:
        """Returns True if the task differs from what it was, so that it must end."""
        # At first: a factory's task may have none of the attributes below, and `task` is one more
        # reference.
        if (
            self._has_factory
            or getrefcount(self._task) + getweakrefcount(self._task) != self._references
        ):
            return True
        task, context = self._task, self._context
        return bool(
            len(get_referents(task)) != self._referents  # its attributes and callbacks
            or task.cancelling()
            # It is not yet cancelled if a handler took that back, but would be.
            or task._must_cancel  # type: ignore[attr-defined]
            or task.get_name() != self._name
            # None of the first variables can be missing: only a context that sets one can reset it.
            or len(context) != self._variables
            # With one, it is `TASK`, kworker's own.
            or (self._variables > 1 and self._has_set_variables())
        )

    def call_as_at_first(self, function: Callable[[], None]) -> None:
        """Calls `function` with the context variables as they were before the first handler."""
        self._first.run(function)

    def _has_set_variables(self) -> bool:
        # By identity, since values may have comparisons of their own.
        changed = sum(map(is_not, self._context.values(), self._first.values()))
        return changed > (TASK.get() is not None)
