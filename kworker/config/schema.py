"""Makes a JSON schema of `kworker.toml`, for editors, from the configuration model."""

from typing import Any

from kworker.config.model import KafkaSettings, Settings

_ELSEWHERE = {
    "title": "A value read from a file or an environment variable",
    "type": "object",
    "properties": {"file": {"type": "string"}, "env": {"type": "string"}},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}


def file_schema() -> dict[str, Any]:
    """Returns the JSON schema. Any string may also be `{ file = "…" }` or `{ env = "…" }`."""
    schema = Settings.model_json_schema()
    schema["title"] = "kworker.toml"
    schema["$defs"][KafkaSettings.__name__] = _kafka()
    schema = {name: _in_file(part) for name, part in schema.items()}
    schema["$defs"]["Elsewhere"] = _ELSEWHERE
    return schema


def _kafka() -> dict[str, Any]:
    """Returns the schema of `[kafka]`: any property, and tables for consumers and producers."""
    properties = {"type": "object", "additionalProperties": True}
    return {
        "title": "librdkafka's properties, for every client",
        **properties,
        "properties": {
            "bootstrap.servers": {
                "type": "string",
                "description": "Addresses of brokers, as host:port, with commas between them.",
            },
            "consumer": {**properties, **_described("consumer"), "default": {}},
            "producer": {**properties, **_described("producer"), "default": {}},
        },
        "required": ["bootstrap.servers"],
    }


def _described(key: str) -> dict[str, Any]:
    return {"description": KafkaSettings.model_fields[key].description}


def _in_file(schema: Any) -> Any:
    """Returns a part of the schema in which any string may also be `{ file = … }` or `{ env = … }`.

    Joins the lines of each description.
    """
    if isinstance(schema, list):
        return [_in_file(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _in_file(value) for name, value in schema.items()}
    if isinstance(text := inner.get("description"), str):
        inner["description"] = text.replace("\n", " ")
    if inner.get("type") != "string":
        return inner
    about = {k: inner.pop(k) for k in ("title", "description", "default") if k in inner}
    return {**about, "anyOf": [inner, {"$ref": "#/$defs/Elsewhere"}]}
