"""Names and strings as Spark SQL spells them."""


def identifier(name: str) -> str:
    """Quotes the name of a column or table for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Quotes a string for Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
