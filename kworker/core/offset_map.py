"""What a group holds of a partition: a position, and in its metadata what is done beyond it."""

from typing import NamedTuple

METADATA_MAX = 4_095
"""Characters of ASCII that a broker takes as it comes, with the NUL that the client adds."""


class Committed(NamedTuple):
    """What a group holds of a partition."""

    position: int
    metadata: str = ""
