"""`POST /agent/v1/datasets`: what agents report of their caches."""

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from datasets.models import ApplianceCache, DatasetCopyRecord
from tests.cast import Cast
from tests.unit.access.conftest import AgentAPI
from tests.unit.jobqueue.dataset_builders import add_dataset

PATH = "/agent/v1/datasets"


def test_a_report_is_stored_for_the_appliance_of_its_agent(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        version_id = add_dataset(session, cast.acme).versions[0].id
    copy = {"version_id": version_id, "state": "complete", "cached_bytes": 7}
    body = {"copies": [copy], "cache_bytes": 7, "peer_url": "https://dgx-01:7443"}

    for _ in range(2):
        assert api.request("POST", PATH, json=body).status_code == 204

    with sessions() as session:
        [row] = session.scalars(select(DatasetCopyRecord))
        assert (row.version_id, row.cached_bytes, row.appliance.name) == (version_id, 7, "dgx-01")
        [cache] = session.scalars(select(ApplianceCache))
        assert cache.peer_url == "https://dgx-01:7443"


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"copies": [{"version_id": "x", "state": "melted"}]},
        {"copies": [{"version_id": "x", "state": "complete", "cached_bytes": -1}]},
        {"copies": [{"version_id": "x", "state": "complete"}] * 10_001},
        {"cache_bytes": 2**63},
        {"peer_url": "x" * 301},
    ],
)
def test_a_malformed_report_is_refused(api: AgentAPI, body: object) -> None:
    assert api.request("POST", PATH, json=body).status_code in {400, 413, 422}


def test_a_report_without_an_identity_is_refused(api: AgentAPI) -> None:
    answer = api.request("POST", PATH, json={}, headers={"Authorization": "Bearer vda_nobody"})
    assert answer.status_code == 401
