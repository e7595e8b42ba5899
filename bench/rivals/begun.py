"""What rivals share: the time of the first call of a handler, and the order that takes long."""

import os
import time
from pathlib import Path

noted = False
PROBE_TOTAL, PROBE_S = -1, 1.0  # of an order that takes long: do the others wait for it?


def note() -> None:
    """Writes the time to a file, unless another process of the rival was first."""
    global noted
    noted = True
    try:
        with Path(os.environ["BENCH_BEGUN"]).open("x") as file:
            file.write(str(time.monotonic()))
    except FileExistsError:
        pass
