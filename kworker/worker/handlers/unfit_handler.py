"""The refusal of a handler that no record can be passed to, and the definition to write instead."""

from dataclasses import dataclass

from kworker.errors import ConfigError


class UnfitHandler(ConfigError):
    """Raised for a handler that kworker cannot call, whatever the record.

    `problem` continues a sentence that begins with the handler's name; `step` says what to write.
    """

    def __init__(self, reference: str, problem: str, step: str) -> None:
        super().__init__(f"handler: {reference} {problem}; {step}")
        self.problem = problem
        self.step = step


@dataclass(frozen=True, slots=True)
class Definition:
    """The `def` line of a handler, without its parameters. Errors show how this line should be.

    `name` is the function's name, or `__call__` for a class or an instance.
    """

    reference: str
    name: str
    is_async: bool
    is_batch: bool

    def of(self, *parameters: str) -> str:
        """Returns the line with these parameters, such as `def notify(message: Message)`."""
        first = ["self"] if self.name == "__call__" else []
        kind = "async def" if self.is_async else "def"
        return f"{kind} {self.name}({', '.join([*first, *parameters])})"

    @property
    def of_messages(self) -> str:
        """The line of a handler that takes the message, or a batch of messages."""
        return self.of("messages: list[Message]" if self.is_batch else "message: Message")

    def built(self, value: str, message: str = "") -> str:
        """Returns the line of a handler whose parameter `value` is built from the record's value.

        `message`, if given, is a second parameter.
        """
        kinds = ("list[dict]", "list[Message]") if self.is_batch else ("dict", "Message")
        pairs = zip((value, message), kinds, strict=True)
        return self.of(*(f"{name}: {kind}" for name, kind in pairs if name))

    def refusal(self, problem: str, step: str) -> UnfitHandler:
        return UnfitHandler(self.reference, problem, step)
