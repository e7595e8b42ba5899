"""One contract, two implementations: every test that asks for `kafka` runs over both."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.fault_brokers import strict as strict
from tests.support.kafka_and_twin import Cluster, Real, Twin
from tests.support.redis_and_twin import OwnServer, RealStore, Store, TwinStore


@pytest.fixture(params=["twin", "real"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "twin":
        yield Twin()
        return
    real = Real(request.getfixturevalue("bootstrap"), request.getfixturevalue("topic"))
    yield real
    real.end()


@pytest.fixture(scope="session")
def own_redis(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[OwnServer]:
    server = OwnServer(tmp_path_factory.mktemp("redis"), free_port())
    yield server
    server.end()


@pytest.fixture(params=["twin", "real"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "twin":
        yield TwinStore()
        return
    real = RealStore(request.getfixturevalue("own_redis"))
    yield real
    real.end()
