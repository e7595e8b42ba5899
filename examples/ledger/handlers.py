"""What happens to a transfer: it is booked exactly once, however often Kafka delivers it.

Effect and source position are one transaction, so there is no moment at which one is there without
the other: whatever dies at whatever time, the record either comes again and finds nothing, or
finds that it was booked.
"""

import os

import database
from pydantic import BaseModel, Field

from kworker import Message, Retry

URL = os.environ.get("LEDGER_URL", "sqlite:///ledger.db")

# Not "look, then insert": two workers may be at one record at the same time, when one of them has
# lost its partition and does not know it yet. The second waits here for the first to commit.
ENTER = """
    INSERT INTO transfers (source_topic, source_partition, source_offset, source_timestamp,
                           transfer_id, debit, credit, amount)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (source_topic, source_partition, source_offset, source_timestamp) DO NOTHING
"""
MOVE = "UPDATE accounts SET balance = balance + ? WHERE account = ?"


class Transfer(BaseModel):
    """The value of a record. One that is none becomes a dead letter at once."""

    transfer_id: str
    debit: str
    credit: str
    amount: int = Field(gt=0, le=10**12)  # cents


class Ledger:
    """Books transfers. One in each process, made after the fork: no connection survives one."""

    def __init__(self) -> None:
        self._database = database.connect(URL)

    def __call__(self, transfer: Transfer, message: Message) -> None:
        """Whatever is raised undoes all of it, so that a failed attempt leaves nothing.

        What returned a result would have to return the same one when the transfer was booked
        before: Kafka may not have had it yet.
        """
        with self._database.transaction() as execute:
            if self._enter(execute, transfer, message):
                self._move(execute, transfer)

    def close(self) -> None:
        self._database.close()

    def _enter(self, execute: database.Execute, transfer: Transfer, message: Message) -> bool:
        """False for a record that was booked before.

        The position is the source's, also when the record comes by a delay topic, a redrive or a
        replay.
        """
        position = (message.topic, message.partition, message.offset, message.timestamp)
        entry = (transfer.transfer_id, transfer.debit, transfer.credit, transfer.amount)
        return execute(ENTER, (*position, *entry)).rowcount == 1

    def _move(self, execute: database.Execute, transfer: Transfer) -> None:
        moves = [(transfer.debit, -transfer.amount), (transfer.credit, transfer.amount)]
        # In the same order everywhere: else two transfers could wait for each other's account.
        for account, amount in sorted(moves):
            if execute(MOVE, (amount, account)).rowcount != 1:
                raise Retry(f"no account {account}")  # it may be opened meanwhile
