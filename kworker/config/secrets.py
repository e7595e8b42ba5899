"""Recognises the secrets of a configuration, and masks them in texts. Pure."""

import re
from collections.abc import Iterable

MASK = "********"
"""Stands in the place of a secret."""

# Parts of the names of secret properties: of librdkafka, Spark, Hadoop's file systems and Iceberg.
_NAME = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas|oauthbearer\.config"
    r"|key\.pem|private\.key|account\.key|access[.-]key|encryption\.key|\.sas\.",
    re.IGNORECASE,
)
# Only tables of a library's properties have keys that a name reveals; kworker's own are few.
_PROPERTIES = ("kafka.", "spark.conf.")
_OWN = ("console.token",)
# A text in place of one of these tables may be the JSON of the whole table.
_TABLES = (
    *("kafka", "kafka.consumer", "kafka.producer"),
    *("spark", "spark.conf", "idempotency", "console"),
)
# Up to the last @, since a password may have any character.
_IN_ADDRESS = re.compile(r"(?<=://)([^/?#:@\s]*):[^?#\s]*@")
_IN_OPTIONS = re.compile(
    r"(?P<name>(?:passw|passphrase|pwd|secret|token(?!iz)|credential)[\w.-]*=)[^\s&;,\"']+",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Returns True if the value of a dotted key must not be shown.

    Decides by the key alone. Callers also hide each value that the file gives as `{ file = }` or
    `{ env = }`, whatever its key is.
    """
    return (
        key in _OWN
        or key in _TABLES
        or (key.startswith(_PROPERTIES) and _NAME.search(key) is not None)
    )


def without_secrets(text: str) -> str:
    """Masks the passwords in addresses, such as `redis://user:…@host`, and in `password=…`."""
    text = _IN_ADDRESS.sub(rf"\1:{MASK}@", text)
    return _IN_OPTIONS.sub(rf"\g<name>{MASK}", text)


def without_values(text: str, values: Iterable[str]) -> str:
    """Masks each of these values where it stands in double quotes in `text`."""
    for value in values:
        text = text.replace(f'"{value}"', f'"{MASK}"')
    return text
