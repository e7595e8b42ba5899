"""The third act: the same call, as kworker's handler."""

import calls

from kworker import Message


def bill(message: Message) -> dict:
    """Returns the invoice of one order."""
    return calls.invoice(message.json())
