"""Finds, reads and validates `kworker.toml`; reports every mistake in it at once."""

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kworker.config.environment import Override, overrides
from kworker.config.keys import KAFKA_TABLES, Key, dotted, flat, is_table, takes
from kworker.config.model import Config, Raw, Settings, TableSettings
from kworker.config.rules import RULES
from kworker.config.secrets import is_secret, without_values
from kworker.config.spark_rules import tables
from kworker.config.validation import GOT, Problem, overlaps, unfit, validate
from kworker.errors import ConfigError

SYSTEM_FILE = Path("/etc/kworker/kworker.toml")
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
# Properties whose last part is `file`, so that their nested spelling is not an indirection.
_ENDS_IN_FILE = frozenset(
    f"sasl.oauthbearer.assertion{part}" for part in ("", ".private.key", ".jwt.template")
)
# A word in the place of a path: librdkafka looks for the authorities of the system.
_NO_PATH = ("ssl.ca.location", "probe")


def find(path: str | Path | None = None) -> Path:
    """Returns the absolute path of the configuration file.

    Takes `path` if given, else $KWORKER_CONFIG if set. Otherwise takes the first file that exists
    of ./kworker.toml and /etc/kworker/kworker.toml. Raises `ConfigError` if there is no file; the
    error names the places that were searched.
    """
    named = path or os.environ.get("KWORKER_CONFIG")
    places = [Path(named)] if named else [Path("kworker.toml"), SYSTEM_FILE]
    try:
        for place in places:
            if place.is_file():
                return place.absolute()
        raise ConfigError(_not_found(places, "" if path or not named else " ($KWORKER_CONFIG)"))
    except OSError as error:  # a folder that is closed to this user, or a removed working folder
        where = error.filename or "the working folder"
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error


def _not_found(places: list[Path], source: str) -> str:
    if len(places) > 1:
        searched = ", ".join(str(place.absolute()) for place in places)
        return (
            f"no configuration file at {searched}; name one with --config or $KWORKER_CONFIG,"
            " or write one with: kworker init"
        )
    given = f"{places[0].absolute()}{source}"
    if places[0].is_dir():
        return f"{given} is a folder; name the file in it"
    return f"the configuration file {given} does not exist; write one with: kworker init"


def load(path: str | Path | None = None, changes: Raw | None = None) -> Config:
    """Loads the configuration. Raises `ConfigError` with a line for each mistake.

    `changes` are tables whose values replace those of the file and of the environment.
    """
    file = find(path)
    return from_tables(_toml(file), file, os.environ, changes)


def from_tables(
    tables: Raw, file: Path, environment: Mapping[str, str], changes: Raw | None = None
) -> Config:
    """Returns the configuration of a file that would hold these tables. For the errors see `load`.

    `environment` overrides values of `tables`, and `changes` overrides values of both. Relative
    paths begin at the file's folder.
    """
    reading = _Reading(file.parent)
    raw = reading.shaped(tables)
    for override in overrides(environment):
        if isinstance(override, Override):
            reading.override(raw, override)
        else:
            reading.problems.append(f"${override.variable}: {override.text}")
    _merge(raw, reading.shaped(changes or {}))
    raw.setdefault("state_dir", _state_dir(raw.get("name")))
    settings = reading.validated(raw)
    if settings is None or reading.problems:
        raise ConfigError(reading.problems)
    secrets = frozenset(dotted(key, raw) for key in reading.secrets)
    return Config(**dict(_absolute(settings, file.parent)), file=file, secret_keys=secrets)


def import_path(config: Config) -> None:
    """Adds the configuration file's folder to sys.path, so that handlers in it can be imported."""
    folder = str(config.file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _toml(file: Path) -> Raw:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested without end
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _state_dir(name: object) -> str:
    """Returns the default state folder.

    It is the one that systemd has made for the service ($STATE_DIRECTORY). Without systemd it is
    `.kworker/<name>`, relative to the folder of the configuration file.
    """
    return os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or f".kworker/{name}"


@dataclass
class _Reading:
    """The state of reading one file: the problems so far, and the keys of its secrets."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    secrets: set[Key] = field(default_factory=set)
    unread: set[Key] = field(default_factory=set)
    """Keys whose value cannot be used, or whose `{ file = }` or `{ env = }` cannot be read."""
    secret_values: set[str] = field(default_factory=set)
    variables: dict[Key, str] = field(default_factory=dict)
    """The environment variable that a key's value came from."""

    def shaped(self, raw: Raw) -> Raw:
        """Replaces each `{ file = … }` and `{ env = … }` by what the file or variable contains.

        Also turns tables nested under [kafka] and [spark.conf] into dotted names.
        """
        raw = self._resolved(raw, ())
        for table in (*KAFKA_TABLES, ("spark", "conf")):
            self._flatten(raw, table)
        return raw

    def override(self, raw: Raw, override: Override) -> None:
        """Replaces a value in `raw` by that of an environment variable.

        In a table, replaces only the entries that the variable has, and keeps the others.
        """
        nested = override.value
        for part in reversed(override.key):
            nested = {part: nested}
        _merge(raw, self.shaped(nested))
        self.variables[override.key] = override.variable

    def validated(self, raw: Raw) -> Settings | None:
        """Validates `raw`, and notes every problem.

        Returns the settings without wrong values. Returns None if `raw` is invalid even without
        them.
        """
        settings, found = validate(raw)
        wrong = {*(problem.key for problem in found), *self.unread}
        if settings is not None:
            for rule in (*RULES, tables):
                for problem in rule(settings):
                    if not any(overlaps(key, wrong) for key in (problem.key, *problem.also)):
                        found.append(problem)
        self.problems += [self._line(p, raw) for p in found if p.key not in self.unread]
        return settings

    def _line(self, problem: Problem, raw: Raw) -> str:
        text = problem.text
        if overlaps(problem.key, self.secrets) or is_secret(dotted(problem.key)):
            text = text.partition(GOT)[0]
        text = without_values(text, self.secret_values)
        origin = [var for key, var in self.variables.items() if problem.key[: len(key)] == key]
        source = f" (from ${origin[-1]})" if origin else ""
        return f"{dotted(problem.key, raw)}: {text}{source}"

    def _resolved(self, raw: Any, key: Key) -> Any:
        if reason := unfit(raw, len(key)):
            return self._unusable(key, reason)
        if isinstance(raw, list):
            return [self._resolved(item, (*key, index)) for index, item in enumerate(raw)]
        if not isinstance(raw, dict):
            return raw
        if _is_indirection(raw, key):
            return self._fetched(raw, key)
        return {name: self._resolved(value, (*key, name)) for name, value in raw.items()}

    def _fetched(self, indirection: Raw, key: Key) -> str:
        """Returns the text of the file or environment variable that `indirection` names.

        `indirection` is `{ file = … }` or `{ env = … }`. If the file or variable cannot be read,
        notes a problem and returns "".
        """
        key = _flat_key(key)
        self.secrets.add(key)
        [(kind, where)] = indirection.items()
        file = self.folder / where
        try:
            text = os.environ[where] if kind == "env" else file.read_text("utf-8").rstrip("\r\n")
            reason = unfit(text, 0)
        except KeyError:
            reason = f"the environment variable {where} is not set"
        except (OSError, ValueError) as error:
            reason = f"{file} cannot be read: {getattr(error, 'strerror', error)}"
        if reason:
            return self._unusable(key, reason)
        self.secret_values.add(text)
        return text

    def _unusable(self, key: Key, reason: str) -> str:
        """Notes a problem with a value; returns "" in its place."""
        self.problems.append(f"{dotted(_flat_key(key))}: {reason}")
        self.unread.add(_flat_key(key))
        return ""

    def _flatten(self, raw: Raw, table: Key) -> None:
        *parents, last = table
        for part in parents:
            raw = raw.get(str(part), {}) if isinstance(raw, dict) else {}
        if not isinstance(raw, dict) or not isinstance(raw.get(str(last)), dict):
            return
        inner = {k: raw[str(last)].pop(k) for k in _inner(table) if k in raw[str(last)]}
        flattened: Raw = {}
        for name, value in flat(raw[str(last)]):
            if name in flattened:
                self.problems.append(f"{dotted((*table, name))}: given twice; keep one")
            flattened[name] = self._located(name, value)
        raw[str(last)] = {**flattened, **inner}

    def _located(self, name: str, value: Any) -> Any:
        """Returns the value, made absolute if it is the path of a certificate or key."""
        is_path = name.endswith(".location") or name.removesuffix(".file") in _ENDS_IN_FILE
        if not is_path or not isinstance(value, str) or not value or (name, value) == _NO_PATH:
            return value
        return str(self.folder / value)


def _inner(table: Key) -> tuple[str, ...]:
    """Returns the names of the tables in `table`, such as `producer` in `[kafka]`.

    Any other name in `[kafka]` is a property, or the beginning of a property's dotted name.
    """
    return tuple(str(key[1]) for key in KAFKA_TABLES if len(key) > 1 and key[:-1] == table)


def _flat_key(key: Key) -> Key:
    """Returns a key in which the parts of a property's name are joined.

    `("kafka", "sasl", "password")` becomes `("kafka", "sasl.password")`. Returns any other key as
    it is.
    """
    for table in (*KAFKA_TABLES, ("spark", "conf")):
        if key[: len(table)] == table and len(key) > len(table):
            return (*table, ".".join(str(part) for part in key[len(table) :]))
    return key


def _is_indirection(raw: Raw, key: Key) -> bool:
    """Returns True if `raw` is `{ file = "…" }` or `{ env = "…" }` in place of a string."""
    if len(raw) != 1 or is_table(takes(key)) or not key:
        return False
    [(kind, where)] = raw.items()
    if kind == "file" and _flat_key(key)[-1] in _ENDS_IN_FILE:
        return False
    return kind in ("file", "env") and isinstance(where, str)


def _merge(under: Raw, over: Raw) -> None:
    for name, value in over.items():
        below = under.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        else:
            under[name] = value


def _absolute(settings: Settings, folder: Path) -> Settings:
    """Returns the settings with absolute paths; relative ones start at the file's folder."""
    changes: dict[str, Any] = {"state_dir": folder / settings.state_dir}
    if spark := settings.spark:
        changes["spark"] = spark.model_copy(
            update={
                "checkpoints": _place(spark.checkpoints, folder),
                "tables": [_placed(table, folder) for table in spark.tables],
            }
        )
    return settings.model_copy(update=changes)


def _placed(table: TableSettings, folder: Path) -> TableSettings:
    return table.model_copy(update={"path": _place(table.path, folder)})


def _place(path: str, folder: Path) -> str:
    """Returns the absolute path; a URI or an empty text is returned as it is."""
    return path if not path or _URI.match(path) else str(folder / path)
