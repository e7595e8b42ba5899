"""What every test may ask for: one real Kafka and one real Redis for the whole session."""

import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kworker.sandbox import Options, Sandbox
from kworker.sandbox.process import port_is_free
from tests.support import shared
from tests.support.booted_systemd import boots
from tests.support.kafka import led
from tests.support.tables import Reader
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.s3 import S3

TESTS = Path(__file__).parent
PORTS_TOGETHER = 10
SHARES = 4
# For every JVM: none lives long enough to gain by optimising and verifying what it costs.
SHORT_LIVED = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -Xshare:auto"  # nor do they keep classes, in files that others would have
)

# An example may take as long as the machine lets it: time is not what properties are about.
hypothesis.settings.register_profile(
    "untimed",
    deadline=None,
    print_blob=True,  # so that what failed once can be had again
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")

# The longest first, and last what takes no time: so no process is left alone with a long one.
ORDER = ("e2e/test_spark_job.py", "faults", "e2e", "process", "contract")

# Where no systemd can boot, as in most containers.
collect_ignore_glob = [] if boots() else ["*/test_booted_*.py"]

_GUARD = pytest.StashKey[shared.Guard]()


def pytest_configure(config: pytest.Config) -> None:
    """Before any test, and before the processes that run them."""
    if not hasattr(config, "workerinput"):
        config.stash[_GUARD] = shared.Guard()


def pytest_report_header() -> str:
    """Names what is left out, so that nobody takes it for tested."""
    left_out = ", ".join(collect_ignore_glob)
    return f"no systemd can boot here: without {left_out}" if left_out else "systemd can boot here"


def pytest_unconfigure(config: pytest.Config) -> None:
    if guard := config.stash.get(_GUARD, None):
        guard.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files keep together, and their tests in order."""

    def turn(item: pytest.Item) -> int:
        places = (n for n, name in enumerate(ORDER) if item.path.is_relative_to(TESTS / name))
        return next(places, len(ORDER))

    items.sort(key=turn)


@pytest.fixture(scope="session", autouse=True)
def short_lived_java() -> Iterator[None]:
    """Brokers and Spark start in half the time; the environment is the way to each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", SHORT_LIVED)
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Begun in the background, this process ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Gives a port that is free, as are the nine above it; below those of outgoing connections."""
    # Each of the processes that run tests has its own share of them.
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SHARES
    candidates = list(range(20000 + number * PORTS_TOGETHER, 32000, SHARES * PORTS_TOGETHER))
    random.shuffle(candidates)

    def take() -> int:
        while True:
            port = candidates.pop()
            if all(port_is_free(port + above) for above in range(PORTS_TOGETHER)):
                return port

    return take


@pytest.fixture(scope="session")
def server(free_port: Callable[[], int]) -> Callable[..., Sandbox]:
    """Servers for the whole session, by name: `server("strict", redis=False)`, with any `Options`.

    Whichever process asks first starts them.
    """

    def of(name: str, **options: Any) -> Sandbox:
        with shared.one_at_a_time(name) as folder:
            if not folder.exists():
                options |= {"kafka_port": free_port(), "redis_port": free_port()}
                shared.guard(folder)
            sandbox = Sandbox(folder, Options(**options))
            sandbox.up()
            return sandbox

    return of


@pytest.fixture(scope="session")
def sandbox(server: Callable[..., Sandbox]) -> Sandbox:
    """One broker and Redis. Shared: a test that breaks servers takes an `own_sandbox`."""
    # Records may be stamped with any time: the retention check erases none of them meanwhile.
    return server("sandbox", properties={"log.retention.ms": "-1"})


@pytest.fixture
def sandbox_folder(tmp_path: Path) -> Iterator[Path]:
    """For a sandbox of the test's own, which is gone when the test ends."""
    folder = tmp_path / "sandbox"
    shared.guard(folder)
    yield folder
    Sandbox(folder).down(wipe=True)


@pytest.fixture
def own_sandbox(sandbox_folder: Path, free_port: Callable[[], int]) -> Callable[..., Sandbox]:
    """Starts the test's own: `own_sandbox(brokers=3, redis=False)`, with any of `Options`."""

    def start(**options: Any) -> Sandbox:
        ports = {"kafka_port": free_port(), "redis_port": free_port()}
        sandbox = Sandbox(sandbox_folder, Options(**{**ports, **options}))
        sandbox.up()
        return sandbox

    return start


@pytest.fixture(scope="session")
def bootstrap(sandbox: Sandbox) -> str:
    return sandbox.bootstrap


@pytest.fixture(scope="session")
def redis_url(sandbox: Sandbox) -> str:
    return sandbox.redis_url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> "Iterator[S3]":
    """An S3 server; a test takes a bucket of its own."""
    from tests.support.s3 import S3  # with Amazon's client, which takes a second

    server = S3(tmp_path_factory.mktemp("s3"), free_port())
    yield server
    server.close()


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Reads tables; to be asked for early, since Spark starts meanwhile."""
    reader = Reader(tmp_path_factory.mktemp("reader"))
    yield reader
    reader.close()


@pytest.fixture(scope="session")
def topic(bootstrap: str) -> Callable[..., str]:
    """Creates topics: `topic("orders", partitions=4, **config)` gives the unique name of one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(prefix: str = "topic", *, partitions: int = 4, **config: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:10]}"
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        created = admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])
        created[name].result(30)
        eventually(lambda: led(admin, name) == partitions, what=f"leaders of {name}")
        return name

    return create


@pytest.fixture
def results(topic: Callable[..., str]) -> str:
    """Where results go; stamped when they are appended, which the client cannot choose."""
    return topic("proof-results", message_timestamp_type="LogAppendTime")
