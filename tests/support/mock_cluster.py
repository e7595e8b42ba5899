"""The client library's own mock of a broker, which fails as it is told: for the branches of a
client only. That nothing is lost is never shown with it."""

import ctypes

from tests.support.library import library

PRODUCE, INIT_PRODUCER, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 22, 24, 25, 26, 28
_PRODUCER = 0
_TEXT_BYTES = 512


class MockCluster:
    """One broker that knows transactions, and lives in a thread of this process."""

    def __init__(self) -> None:
        self._library = library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        # It has no brokers to find, and says so.
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", text, _TEXT_BYTES)
        made = self._library.rd_kafka_new(_PRODUCER, conf, text, _TEXT_BYTES)
        assert made, text.value
        self._client = ctypes.c_void_p(made)
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, 1))
        found = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.bootstrap: str = found.decode()

    def fail(self, request: int, *codes: int) -> None:
        """The next such requests are answered with these errors; 0 is none."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(codes)), errors
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
