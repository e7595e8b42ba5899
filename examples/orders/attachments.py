"""The attachments of orders: PDFs, read by a library written in C.

The few lines of ctypes stand for that library, and have a typical bug: they read at any address
that the document gives. `fixed/attachments.py` is the next release.
"""

import base64
import ctypes

_HEADER_BYTES = 16  # "xref", then the number of the first object and the count of objects


def pages(attachment: str | None) -> int:
    """Returns the number of pages of a PDF given as base64; 0 without one."""
    return _pages(base64.b64decode(attachment)) if attachment else 0


def _pages(pdf: bytes) -> int:
    table = int(pdf.rpartition(b"startxref")[2].split()[0])
    buffer = ctypes.create_string_buffer(pdf)
    header = ctypes.string_at(ctypes.addressof(buffer) + table, _HEADER_BYTES)
    return int(header.split()[2]) - 1  # the first object is not a page
