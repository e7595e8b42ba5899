"""What passes between a worker and its cell: whole, or not at all."""

import pickle

import pytest

from kworker.core.failure import Failure
from kworker.core.headers import Source
from kworker.core.outcome import NO_RESULTS, Output, Results, outputs_of, plain_result
from kworker.worker.quarantine import pipe
from kworker.worker.quarantine.pipe import Frames, ProtocolError, RunEnded, RunRequest, frame

RUN = RunRequest(7, Source("orders", 3, 77, 1_700_000_000_000), None, b"\xff", (("a", None),), 2)


@pytest.mark.parametrize("piece", [1, 3, 7, 10_000])
def test_messages_are_assembled_from_any_pieces(piece: int):
    """A pipe cuts where it likes."""
    failure = Failure("error", "ValueError", ("ValueError",), "no", "stack", 1.5, "billing")
    words = [RUN, RunEnded(1, NO_RESULTS), RunEnded(2, failure)]
    data = b"".join(map(frame, words))
    frames, heard = Frames(), []
    for at in range(0, len(data), piece):
        heard += frames.add(data[at : at + piece])
    assert repr(heard) == repr(words)  # an outcome is no other's equal


def test_a_result_arrives_as_it_was_made():
    output = Output("orders.results", b"k", b"v", [("kworker-source", b"orders/3/77/1")])
    plain = plain_result("orders.results", b"k", b"v", b"orders/3/77/1", output.size)
    for outcome in (Results([output]), plain):
        [word] = Frames().add(frame(RunEnded(1, outcome)))
        assert type(word.outcome) is type(outcome)
        [arrived] = outputs_of(word.outcome)
        assert (arrived.topic, arrived.key, arrived.value) == ("orders.results", b"k", b"v")
        assert (arrived.headers, arrived.size) == (output.headers, output.size)


def test_a_frame_too_large_is_refused_by_writer_and_reader(
    monkeypatch: pytest.MonkeyPatch,
):
    """Neither a handler's results nor a stray write may fill the worker's memory."""
    data = frame(RunEnded(1, Results([Output("t", None, b"x" * 1000, [])])))
    monkeypatch.setattr(pipe, "FRAME_BYTES_MAX", 500)
    with pytest.raises(OverflowError):
        frame(RunEnded(1, Results([Output("t", None, b"x" * 1000, [])])))
    with pytest.raises(ProtocolError):
        Frames().add(data[:4])


class Bursting:
    """What a handler may have put into our pipe."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return burst, ()


def burst() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        b"",
        pickle.dumps(RUN)[:-5],
        b"cno.such\nthing\n.",
        pickle.dumps(Bursting()),
    ],
)
def test_an_unreadable_frame_is_a_protocol_error(data: bytes):
    with pytest.raises(ProtocolError):
        Frames().add(len(data).to_bytes(4, "little") + data)
