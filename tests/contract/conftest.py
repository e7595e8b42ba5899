"""One contract, two implementations: every test that asks for `kafka` runs over both."""

import pytest

from tests.contract.clusters import Cluster, Real, Twin


@pytest.fixture(params=["twin", "real"])
def kafka(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "twin":
        return Twin()
    return Real(request.getfixturevalue("bootstrap"), request.getfixturevalue("topic"))
