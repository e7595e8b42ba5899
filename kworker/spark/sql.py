"""Names and strings as Spark SQL spells them."""


def identifier(name: str) -> str:
    """A column or table name as SQL spells it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string as SQL spells it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
