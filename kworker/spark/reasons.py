"""Spark's exceptions, pages long, as the one line that says what is wrong."""

import re

REASON_CHARS_MAX = 300

_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_WRAPPER = re.compile(r"terminated with exception: ")
_PYTHON_CAUSE = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Exit|Interrupt)\b.*)", re.M)
_JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+([A-Z][\w$]*: )")


def reason(error: BaseException) -> str:
    """The first line that says something, after the exception's name unless Spark gave a code."""
    text = shortened(str(error))
    if text.startswith("["):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def shortened(text: str) -> str:
    """What went wrong, of a message that may wrap others, and hold plans and stack traces."""
    text = _WRAPPER.split(text)[-1]
    if "Traceback (most recent call last)" in text:
        causes = _PYTHON_CAUSE.findall(text)
        text = causes[-1] if causes else text
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line), "")
    return _JAVA_CLASS.sub(r"\1", _SQLSTATE.sub("", first))[:REASON_CHARS_MAX]
