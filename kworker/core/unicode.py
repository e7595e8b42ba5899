"""Tells if a text can be encoded: texts in Python may have parts that UTF-8 cannot hold."""


def is_unicode(text: str) -> bool:
    """Returns False if the text has half a surrogate pair.

    JSON can contain such a half. In an environment variable, Python turns each byte that is not
    UTF-8 into such a half.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
