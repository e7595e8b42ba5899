"""Files in memory: what a child reads, and nobody else finds."""

import os
import subprocess

import pytest

from kworker.host import descriptor_path, memory_file

TEXT = "sasl.jaas.config=canary-5f1e\nname=ü\n"


def test_a_child_reads_a_file_that_no_folder_has() -> None:
    """Through a shell, as Spark's JVM is started; and each time from its beginning."""
    with memory_file(TEXT) as file:
        path = descriptor_path(file)
        read = subprocess.run(
            ["bash", "-c", f'test -f {path} && exec bash -c "cat {path}; cat < {path}"'],
            pass_fds=[file],
            capture_output=True,
            check=True,
        )
        assert os.readlink(path).startswith("/memfd:")
    assert read.stdout.decode() == 2 * TEXT


def test_a_child_that_was_not_given_the_file_has_none() -> None:
    with memory_file(TEXT) as file:
        path = descriptor_path(file)
        found = subprocess.run(["cat", path], capture_output=True, check=False)
    assert found.returncode != 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
