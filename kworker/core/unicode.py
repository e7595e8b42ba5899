"""Tells if a text can be encoded: texts in Python may have parts that no UTF-8 can hold."""


def is_unicode(text: str) -> bool:
    """Returns False if the text has half a surrogate pair.

    JSON can contain one, and a byte that is not UTF-8 becomes one in a variable of the environment.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
