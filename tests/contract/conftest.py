"""One contract, two implementations: every test that asks for `kafka` runs over both."""

from collections.abc import Iterator

import pytest

from tests.contract.clusters import Cluster, Real, Twin


@pytest.fixture(params=["twin", "real"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "twin":
        yield Twin()
        return
    real = Real(request.getfixturevalue("bootstrap"), request.getfixturevalue("topic"))
    yield real
    real.end()
