"""`kworker config`: prints the configuration in force, and the schema of the file."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.config import reference, toml_file
from kworker.config.model import Config
from kworker.config.reference import KeyReference
from kworker.config.schema import file_schema
from kworker.config.secrets import MASK, is_secret, without_secrets
from kworker.errors import UsageError

app = typer.Typer(
    help="Show the configuration in force, or explain the keys of kworker.toml.",
    no_args_is_help=True,
)

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the configuration in force, from defaults, file and environment; secrets are masked."""
    shown = masked(toml_file.load(config))
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    for line in _toml(shown):
        typer.echo(line)


@app.command()
def schema() -> None:
    """Print a JSON schema of kworker.toml, for editors."""
    typer.echo(json.dumps(file_schema(), indent=2))


@app.command()
def keys(
    of: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]",
            help="Only keys whose dotted name has this in it, such as workers or drain_timeout.",
        ),
    ] = "",
    as_json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help=f"Print all of them as the page {reference.PAGE}.")
    ] = False,
) -> None:
    """Explain the keys of kworker.toml: what each takes, its default, and what it does."""
    found = [each for each in reference.all_references() if of in each.dotted]
    if not found:
        raise UsageError(f"no key has {of!r} in its name; see them all with kworker config keys")
    if markdown:
        typer.echo(reference.as_markdown(found), nl=False)
    elif as_json:
        typer.echo(json.dumps([{**each._asdict(), "key": each.dotted} for each in found], indent=2))
    else:
        for each in found:
            typer.echo(f"{each.dotted} ({_in_brackets(each)})\n    {each.description}")


def _in_brackets(key: KeyReference) -> str:
    if key.required:
        return f"{key.takes}; required"
    return f"{key.takes}; default {key.default}" if key.default else key.takes


def masked(config: Config) -> dict[str, Any]:
    """Returns the configuration. Its keys are named as in kworker.toml; its secrets are masked."""
    data = config.model_dump(mode="json", by_alias=True, exclude={"file", "secret_keys"})
    kafka = data["kafka"]
    data["kafka"] = {**kafka.pop("common"), **{k: v for k, v in kafka.items() if v}}
    present = {name: value for name, value in data.items() if value not in (None, {})}
    shown: dict[str, Any] = _masked(present, "", config.secret_keys)
    return shown


def _masked(value: Any, key: str, secrets: frozenset[str]) -> Any:
    if isinstance(value, dict):
        at = f"{key}." if key else ""
        return {name: _masked(v, f"{at}{name}", secrets) for name, v in value.items()}
    if isinstance(value, list):
        return [_masked(v, f"{key}[{_name(v, n)}]", secrets) for n, v in enumerate(value)]
    if key in secrets or is_secret(key):
        return MASK if value else value
    return without_secrets(value) if isinstance(value, str) else value


def _name(item: Any, index: int) -> Any:
    """Returns the `name` of an item in a list, or its index if it has no name."""
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else index


def _toml(table: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yields a table as lines of TOML. Plain values come before subtables, as TOML demands."""
    for name, value in table.items():
        if not _is_table(value):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ("", f"[{at}{_key(name)}]", *_toml(value, f"{at}{_key(name)}."))
        elif _is_table(value):
            for item in value:
                yield from ("", f"[[{at}{_key(name)}]]", *_toml(item))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or bool(
        isinstance(value, list) and value and isinstance(value[0], dict)
    )


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    """Returns a value as JSON, which is valid TOML for a string, number, boolean or list."""
    return json.dumps(value, ensure_ascii=False)
