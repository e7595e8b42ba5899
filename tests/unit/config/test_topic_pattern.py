"""A pattern of source topics means the same in kworker's checks and in Kafka's client."""

import ctypes
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.config.topic_pattern import mistake, reaches_the_end

NAMES = [
    *("orders", "orders-1", "orders-12", "orders-d", "orders.eu", "orders_eu", "ordersXeu"),
    *("orders.eu.v2", "Orders", "ordersss", "payments", "old-payments-archive", "a", "b", "d"),
    *("ab", "ba", "aa", "aaa", "a-b", "a.b", "a_b", "-", ".", "_", "0", "1", "internal-1", "x"),
]

ACCEPTED = [
    *("^", "^$", "^.*", "^orders-", "^orders-.*", "^orders$", r"^orders\.eu", r"^a\-b$", r"^a\_b"),
    *("^orders-[0-9]+$", "^orders-[0-9]{2}$", "^a{2,}$", "^a{1,2}$", "^a{0}b", "^ordersx?"),
    *("^(orders|payments)", "^(orders|payments)$", "^(a|b)*$", "^(a(b|)|b)$", "^()a", "^(a$|b)"),
    *("^[^o]", "^[A-Z]", "^[a-zA-Z0-9._-]+$", "^a[-_.]b$", "^[^-]$", "^[._-]$", "^[a-]+$", "^a$b"),
]

REFUSED = [
    (r"^orders\.(?:eu|us)$", "write (a|b) for (?:a|b)"),
    ("^(?!internal)", "(?…) is not in it"),
    ("^(?i)x", "(?…) is not in it"),
    (r"^orders-\d+$", "write [0-9]"),
    (r"^\w+$", "write [a-zA-Z0-9_]"),
    *((rf"^a{escape}", "may stand only before . - and _") for escape in (r"\s", r"\b", r"\D")),
    *((rf"^(a){escape}", "may stand only before . - and _") for escape in (r"\1", r"\Z", r"\<")),
    ("^a\\", "may stand only before . - and _"),
    *((f"^a{twice}", "only one of") for twice in ("*?", "+?", "??", "*+", "++", "?+", "**")),
    *((f"^a{twice}", "only one of") for twice in ("{2}?", "{2}+", "{2}{3}", "*{2}")),
    ("^orders|payments", "write ^(a|b)"),
    ("^(a|b)|c", "write ^(a|b)"),
    ("^orders|^payments", "write ^(a|b)"),
    ("^a)|b", "write ^(a|b)"),
    ("^[[:alpha:]]+$", "write [a-zA-Z] for [[:alpha:]]"),
    ("^[^[:digit:]]", "write [a-zA-Z] for [[:alpha:]]"),
    *((f"^{wrong}", "letters, digits, . _ and ranges") for wrong in ("[]a]", "[^]", "[a", r"[\.]")),
    *((f"^{wrong}", "letters, digits, . _ and ranges") for wrong in (r"[a\]b]", "[A-z]", "[a--b]")),
    *((f"^a{wrong}", "expected {2}, {2,} or {2,3}") for wrong in ("{", "{,2}", "{2", "{100}")),
    ("^a{3,2}", "min repeat greater than max repeat"),
    ("^[z-a]", "bad character range"),
    ("^a^b", "only at the beginning"),
    ("^(^a|b)", "only at the beginning"),
    ("^*", "nothing to repeat"),
    ("^(+a)", "nothing to repeat"),
    ("^(a", "missing )"),
    ("^a)", "unbalanced parenthesis"),
    *((f"^a{other}", "names of topics never have") for other in ("/", " ", "é", "}", "\n", "\0")),
    ("^" + "(" * 9999 + ")" * 9999, "recursion"),
]

PARTS = [
    *("a", "b", "d", "1", "-", "_", ".", r"\.", "[ab]", "[^a]", "[a-d]", "[.-]", "(", ")", "(a"),
    *("|", "(a|", "*", "+", "?", "{2}", "{1,}", "{0,2}", "$", "^", "[", "]", "[^", "{", "}", ","),
    *("\\", r"\d", "(?", ":", "=", "[:", ":]", " "),
]


class Libc:
    """A pattern as Kafka's client compiles it."""

    _EXTENDED, _NO_GROUPS = 1, 8

    def __init__(self, pattern: str) -> None:
        self._libc = ctypes.CDLL(None)
        self._compiled = ctypes.create_string_buffer(1024)  # longer than any regex_t
        flags = self._EXTENDED | self._NO_GROUPS
        self.error = self._libc.regcomp(self._compiled, pattern.encode(), flags)

    def finds(self, name: str) -> bool:
        return bool(self._libc.regexec(self._compiled, name.encode(), 0, None, 0) == 0)

    def free(self) -> None:
        if not self.error:
            self._libc.regfree(self._compiled)


def assert_same(pattern: str, names: list[str]) -> None:
    client = Libc(pattern)
    try:
        assert client.error == 0, f"libc refuses {pattern}"
        for name in names:
            assert client.finds(name) == (re.match(pattern, name) is not None), (pattern, name)
    finally:
        client.free()


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_an_accepted_pattern_finds_in_both_the_same_topics(pattern: str) -> None:
    """Else a check names topics that no worker reads, or a worker reads what no check has seen."""
    assert mistake(pattern) == ""
    assert_same(pattern, NAMES)


@given(st.lists(st.sampled_from(PARTS), max_size=9).map(lambda parts: "^" + "".join(parts)))
def test_whatever_is_accepted_means_the_same_in_both(pattern: str) -> None:
    """The table of refusals must leave out nothing."""
    if not mistake(pattern):
        # Python takes ages over a long name with repeats of repeats.
        assert_same(pattern, [name for name in NAMES if len(name) < 8])


@pytest.mark.parametrize(("pattern", "reason"), REFUSED, ids=lambda value: ascii(value)[:30])
def test_a_pattern_with_another_meaning_is_refused(pattern: str, reason: str) -> None:
    """The line says what to write, since people know Python's expressions."""
    assert reason in mistake(pattern)


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [("^a.*", True), ("^a$", True), ("^(a|b)$", True), ("^a", False), (r"^a\.*", False)],
)
def test_the_end_of_a_pattern_is_known(pattern: str, reaches: bool) -> None:
    """Brokers compare a pattern with whole names, where Kafka's client searches."""
    assert reaches_the_end(pattern) == reaches
