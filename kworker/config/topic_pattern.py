"""Regular expressions of source topics, as far as libc and Python read them alike. Pure.

Kafka's client compiles such a pattern with libc as a POSIX extended expression, and searches names
for it. kworker's checks match it with Python. So a pattern can have only those parts that mean the
same in both. An alternative must stand in a group: outside a group, `|` would begin a pattern that
is also found in the middle of names.
"""

import re

_REPEAT = r"(?:[*+?]|\{[0-9]{1,2}(?:,[0-9]{0,2})?\})"
_CLASS = r"\[\^?(?:-|-?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[a-zA-Z0-9._])+-?)\]"
_ONLY_IN_NAMES = "expected letters, digits, . _ and ranges such as 0-9 in […], and - as the last"
# At each place the first part that fits counts; one without a text means the same in both.
_PARTS = tuple(
    (re.compile(part, re.DOTALL), text)
    for part, text in (
        (r"\(\?", "(?…) is not in it; write (a|b) for (?:a|b), or list the topics by name"),
        (r"\\d", r"\d is not in it; write [0-9]"),
        (r"\\w", r"\w is not in it; write [a-zA-Z0-9_]"),
        (r"\\[._-]", ""),
        (r"\\", r"\ may stand only before . - and _; write [a-zA-Z0-9] and the like for others"),
        (_REPEAT + r"(?=[*+?{])", "only one of * + ? {…} may follow a part; remove the others"),
        (_REPEAT, ""),
        (r"\{", "expected {2}, {2,} or {2,3}, with numbers up to 99"),
        (_CLASS, ""),
        (r"\[\^?\[:", f"{_ONLY_IN_NAMES}; write [a-zA-Z] for [[:alpha:]]"),
        (r"\[", f"{_ONLY_IN_NAMES}; no \\ is needed there"),
        (r"[a-zA-Z0-9_.()|$-]", ""),
        (r"\^", "^ may stand only at the beginning"),
        (r".", "has a character that names of topics never have"),
    )
)
_UNANCHORED = "what follows | may stand anywhere in a name; write ^(a|b)"
_TO_THE_END = re.compile(r"(?<!\\)\.\*$|\$$")


def mistake(pattern: str) -> str:
    """Returns the reason why `pattern`, which begins with ^, cannot be used; "" if it can."""
    at = 1
    while at < len(pattern):
        found, text = _part(pattern, at)
        if text:
            return text
        # Parentheses are groups: they stand neither in a class nor after a backslash.
        if found == "|" and pattern.count("(", 0, at) <= pattern.count(")", 0, at):
            return _UNANCHORED
        at += len(found)
    try:
        re.compile(pattern)
    except (re.error, RecursionError) as error:
        return str(error)
    return ""


def reaches_the_end(pattern: str) -> bool:
    """Returns True if `pattern` ends with `.*` or `$`, so that each match reaches a name's end."""
    return _TO_THE_END.search(pattern) is not None


def _part(pattern: str, at: int) -> tuple[str, str]:
    found = ((part.match(pattern, at), text) for part, text in _PARTS)
    return next((match[0], text) for match, text in found if match)
