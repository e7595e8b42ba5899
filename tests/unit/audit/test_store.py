"""The store of traces: what went in comes out, by source record, in the order of positions."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kworker.audit.store import SourceKey, TraceStore
from kworker.core.audit import LetterState, Trace, TraceKind

SMALL = st.integers(0, 2)
WIDE = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS = st.builds(SourceKey, SMALL, SMALL, st.integers(0, 1 << 48), WIDE)
TRACES = st.builds(
    Trace,
    st.sampled_from(TraceKind),
    SMALL,
    SMALL,
    st.integers(0, 1 << 48),
    st.booleans(),
    SMALL,
    SMALL,
    SMALL,
    WIDE,
    st.sampled_from(LetterState),
)


@given(added=st.lists(st.tuples(KEYS, TRACES)))
def test_traces_come_back_sorted_by_source(
    tmp_path_factory: object, added: list[tuple[SourceKey, Trace]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "traces"  # type: ignore[attr-defined]
    with TraceStore(path) as store:
        for first in range(0, len(added), 3):
            store.add(added[first : first + 3])
        found = list(store.records())
    assert [key for key, _ in found] == sorted({key for key, _ in added})
    for key, traces in found:
        assert sorted(traces) == sorted(trace for own, trace in added if own == key)
        assert [trace.kind for trace in traces] == sorted(trace.kind for trace in traces)


def test_a_name_keeps_its_number(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "traces") as store:
        numbers = [store.number(name) for name in ("orders", "results", "orders")]
        assert numbers == [0, 1, 0]
        assert store.names == ["orders", "results"]
