"""The client library itself, for what its Python face does not do."""

import ctypes
from pathlib import Path

import confluent_kafka


def library() -> ctypes.CDLL:
    """The very one that the wheel has loaded."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    [path] = folder.glob("librdkafka*.so*")
    found = ctypes.CDLL(str(path))
    pointers = ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new")
    for name in pointers:
        getattr(found, name).restype = ctypes.c_void_p
    found.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return found
