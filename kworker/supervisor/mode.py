"""The steps in the life of a service, and the state that `status` shows in each."""

from enum import Enum, auto


class Mode(Enum):
    """The phases in the life of a service, listed in the order in which it passes through them."""

    STARTING = auto()  # waits for leftovers and for the preflight check
    SERVING = auto()
    DRAINING = auto()  # workers finish what they have in hand
    CLOSING = auto()  # no worker is left; Spark, the delay process or leftovers are
    GONE = auto()

    def state(self, problems: list[str], *, joined: bool, paused: bool) -> str:
        """Returns the value of `state` in `status`.

        `joined` is True if every worker has had an assignment, `paused` if an operator has paused
        everything.
        """
        match self:
            case Mode.STARTING:
                return "waiting" if problems else "starting"
            case Mode.SERVING if problems:
                return "red"
            case Mode.SERVING if joined:
                return "paused" if paused else "running"
            case Mode.SERVING:
                return "starting"
        return "draining"
