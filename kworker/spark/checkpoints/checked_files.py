"""Files of a checkpoint, read and compared with their checksums."""

import json
import zlib
from pathlib import PurePosixPath
from typing import Any

from kworker.errors import KworkerError
from kworker.spark.checkpoints.folders import Folder


class Damaged(KworkerError):
    """Raised when a query must not start, since it would silently skip or repeat results.

    The attribute `begin` is the value of `kworker spark reset --from` that repairs the query's
    checkpoint; "" if a new checkpoint would not help. The start of a query adds this command to the
    error's text, unless `begin` is "".
    """

    def __init__(self, problem: str, begin: str = "committed") -> None:
        super().__init__(problem)
        self.begin = begin


def read_text(folder: Folder, name: str) -> str:
    """Reads a file. Raises Damaged if it is missing, empty, or not as its checksum says."""
    path = f"{folder}/{name}"
    try:
        content = folder.read(name)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    if content is None:
        raise Damaged(f"{path} is missing")
    if not content:
        raise Damaged(f"{path} is empty")
    if not _matches(content, _sums(folder, name)):
        raise Damaged(f"{path} does not match its checksum")
    return content.decode(errors="replace")


def _sums(folder: Folder, name: str) -> bytes:
    """Reads the checksums that Hadoop writes beside a file; empty if there are none."""
    path = PurePosixPath(name)
    try:
        return folder.read(str(path.with_name(f".{path.name}.crc"))) or b""
    except OSError:
        return b""


def _matches(content: bytes, sums: bytes) -> bool:
    """True if the content matches the checksums, or if `sums` is empty."""
    each = int.from_bytes(sums[4:8], "big")
    if not each:
        return True
    parts = (content[at : at + each] for at in range(0, len(content), each))
    return sums[8:] == b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)


def parse_object(path: str, text: str) -> dict[str, Any]:
    """Parses the content `text` of the file `path`, which must be a JSON object.

    If the content is anything else, raises Damaged with an error that names the file.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Damaged(
            f"{path} is not a JSON object, since it is truncated or another program wrote it; reset"
            " the checkpoint"
        )
    return found
