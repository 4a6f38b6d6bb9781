"""The agent API on a store that has only numbers: text is left out, and no error to its sender."""

from collections.abc import Iterator

import pytest

from tests.cast import FrozenClock
from tests.fixtures.databases import victoria_metrics
from tests.unit.access.conftest import AgentAPI
from timeseries.store import Store
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.store import VictoriaMetricsStore


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, clock: FrozenClock) -> Iterator[Store]:
    with victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url:
        opened = VictoriaMetricsStore(VictoriaMetricsClient(url), clock=clock)
        yield opened
        opened.close()


def test_points_of_text_only_are_counted_and_refuse_nothing(api: AgentAPI) -> None:
    system = b'system uptime=7i\nsystem uptime_format="1 day"\nsystem uptime_format="2 days"\n'

    accepted, wrong = api.write(system), api.write(system + b"oops\n")
    v1 = api.request("POST", "/write", data=system)
    numbers = api.write(b"system uptime=8i\n")

    assert (accepted.status_code, accepted.headers["X-Vedette-Left-Out"]) == (204, "2")
    assert wrong.status_code == 400
    assert wrong.json()["message"].startswith("1 of 4 lines was not stored: line 4: ")
    assert (v1.status_code, v1.headers["X-Vedette-Left-Out"]) == (204, "2")
    assert "X-Vedette-Left-Out" not in numbers.headers
