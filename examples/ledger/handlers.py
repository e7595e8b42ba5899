"""The handler of a transfer: books it exactly once, however often Kafka delivers it.

The effect and the record's source position are written in one transaction, so neither exists
without the other. Whatever dies, the record comes again, and finds either nothing or its position.
"""

import os

import database
from pydantic import BaseModel, Field

from kworker import Message, Retry

URL = os.environ.get("LEDGER_URL", "sqlite:///ledger.db")

# Not "select, then insert": two workers may run one record at the same time, if one has lost its
# partition and does not know it yet. The second waits here for the first to commit.
ENTER = """
    INSERT INTO transfers (source_topic, source_partition, source_offset, source_timestamp,
                           transfer_id, debit, credit, amount)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (source_topic, source_partition, source_offset, source_timestamp) DO NOTHING
"""
MOVE = "UPDATE accounts SET balance = balance + ? WHERE account = ?"


class Transfer(BaseModel):
    """The value of a record. A record with any other value becomes a dead letter at once."""

    transfer_id: str
    debit: str
    credit: str
    amount: int = Field(gt=0, le=10**12)  # cents


class Ledger:
    """Books transfers. Created in each process after the fork: no connection survives one."""

    def __init__(self) -> None:
        self._database = database.connect(URL)

    def __call__(self, transfer: Transfer, message: Message) -> None:
        """Books one transfer. Any exception rolls it back, so a failed attempt leaves nothing.

        If it returned a result, it would have to return the same one for a transfer that is booked
        already, since the first result may be lost.
        """
        with self._database.transaction() as execute:
            if self._enter(execute, transfer, message):
                self._move(execute, transfer)

    def close(self) -> None:
        self._database.close()

    def _enter(self, execute: database.Execute, transfer: Transfer, message: Message) -> bool:
        """Inserts the transfer; returns False for a record that was booked before.

        The position is that in the source topic, also in a retry, a redrive or a replay.
        """
        position = (message.topic, message.partition, message.offset, message.timestamp)
        entry = (transfer.transfer_id, transfer.debit, transfer.credit, transfer.amount)
        return execute(ENTER, (*position, *entry)).rowcount == 1

    def _move(self, execute: database.Execute, transfer: Transfer) -> None:
        moves = [(transfer.debit, -transfer.amount), (transfer.credit, transfer.amount)]
        # Always in the same order: otherwise two transfers could wait for each other's account.
        for account, amount in sorted(moves):
            if execute(MOVE, (amount, account)).rowcount != 1:
                raise Retry(f"no account {account}")  # it may be opened meanwhile
