"""`kworker config keys` explains the keys of kworker.toml."""

import json

from typer.testing import CliRunner

from kworker.cli.config import app
from kworker.config.reference import all_references
from kworker.errors import UsageError


def test_a_key_is_explained_with_its_default() -> None:
    """A part of its name is enough."""
    shown = CliRunner().invoke(app, ["keys", "drain"])
    assert shown.output == (
        'workers.drain_timeout (duration; default "30s")\n'
        "    A stop waits at most this long for handlers that have started.\n"
    )


def test_all_keys_are_explained_as_json_too() -> None:
    """For tools, with the dotted names that messages have."""
    shown = CliRunner().invoke(app, ["keys", "--json"])
    assert [each["key"] for each in json.loads(shown.output)] == [
        each.dotted for each in all_references()
    ]


def test_an_unknown_key_is_told() -> None:
    """Silence would say that there is nothing to know."""
    found = CliRunner().invoke(app, ["keys", "thread_count"]).exception
    assert isinstance(found, UsageError)
    assert "no key has 'thread_count' in its name" in str(found)
