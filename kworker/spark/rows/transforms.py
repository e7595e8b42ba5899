"""The user's `transform` functions: found by name and applied; their errors in one line."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from kworker.errors import KworkerError
from kworker.spark.reasons import is_mistake, reason


class TransformRaised(KworkerError):
    """Raised when a transform raised an error that may pass. The transform will be called again."""


def load_transform(name: str, folder: Path) -> Callable[[DataFrame], object]:
    """Imports `module:function`, first from the configuration's folder.

    Raises ValueError with a text of one line if there is no such function.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    # The user's module: any exception is reported in one line.
    except Exception as error:
        raise ValueError(f"cannot import {module_name}: {reason(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{module_name} has no function {function_name}")
    return function  # type: ignore[no-any-return]


def apply(transform: Callable[[DataFrame], object], name: str, rows: DataFrame) -> DataFrame:
    """Applies a transform to rows.

    Raises ValueError with a text of one line if only a change of the transform can help, and
    TransformRaised if a later call may succeed: the transform may read a table or call a service.
    """
    try:
        made = transform(rows)
    # The user's function: any exception is reported in one line.
    except Exception as error:
        if is_mistake(error):
            raise ValueError(f"{name} raised {reason(error)}") from error
        raise TransformRaised(f"{name} raised an error that may pass: {reason(error)}") from error
    if not isinstance(made, DataFrame):
        raise ValueError(f"{name} returned {type(made).__name__}, not a DataFrame")
    if rows.isStreaming and not made.isStreaming:
        raise ValueError(f"{name} returned a DataFrame that is not made from the rows it was given")
    return made
