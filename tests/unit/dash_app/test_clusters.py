"""Clusters on dashboards: one card, totals by their nodes, charts of connector and node."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from dash_app.queries.fleet import fleet, fleet_totals
from dash_app.queries.rankings import capacity_by_model
from dash_app.routes import appliance_path, job_path
from dash_app.timerange import Span
from jobqueue.models import Job
from jobqueue.states import JobState
from protocol.clusters import requested_gpus
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.clusters import GIB, cluster, make_connector, node, nodes_of, report_cluster
from tests.unit.dash_app.browsing import Browser, served
from tests.unit.dash_app.conftest import Fleet
from timeseries.points import Point
from timeseries.store import Store, write

REPORT = cluster(node("n1", allocated_gpus=3, allocated_cpus=8.0), node("n2"), waiting_jobs=9)


@pytest.fixture
def connector(sessions: SessionFactory, cast: Cast, clock: FrozenClock, store: Store) -> Appliance:
    """A connector with a few samples of its cluster."""
    with sessions.begin() as session:
        made = make_connector(session, cast.acme)
        report_cluster(session, made, REPORT, now=clock.now)
        session.refresh(made)
        identity = {"tenant": made.tenant_id, "appliance": made.id}
    points = []
    for number in range(1, 30):
        at_ns = to_ns(clock.now) - number * 10 * NS_PER_SECOND
        whole = {"gpus": 8.0, "gpus_allocated": 3.0, "waiting_jobs": 9.0}
        points.append(Point("cluster", {}, whole, at_ns))
        for name, allocated in (("n1", 3.0), ("n2", 0.0)):
            fields = {"gpus": 4.0, "gpus_allocated": allocated, "memory_bytes": 512.0 * GIB}
            points.append(Point("cluster_node", {"node": name}, fields, at_ns))
    write(store, points, identity=identity)
    return made


@pytest.fixture
def node_id(sessions: SessionFactory, connector: Appliance) -> str:
    with sessions() as session:
        return str(nodes_of(session, connector)["n1.login"].id)


@pytest.fixture
def client(sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock) -> FlaskClient:
    return served(sessions, store, cast, clock)


def refreshed(client: FlaskClient, ident: str) -> dict[str, Any]:
    answer = Browser(client, "alice").fill(
        "appliance-cpu.figure", appliance_path_data=appliance_path(ident)
    )
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


def test_a_cluster_is_one_card_and_counts_by_its_nodes(
    session: Session, store: Store, cast: Cast, connector: Appliance, span: Span
) -> None:
    seen = fleet(session, store, scope_of(cast.alice), span=span)
    assert [card.appliance_id for card in seen.cards] == [connector.id]
    figures = seen.cards[0].cluster
    assert figures is not None
    assert (figures.title, figures.nodes, figures.nodes_up) == ("Slurm", 2, 2)
    totals = fleet_totals(session, scope_of(cast.alice), seen.cards, is_filtered=False)
    assert (totals.appliances, totals.gpus, totals.allocated_gpus) == (1, 8, 3)
    (model,) = capacity_by_model([], {}, [figures])
    assert (model.model, model.total, model.allocated, model.free) == ("NVIDIA H100", 8, 3, 5)


def test_the_card_of_a_cluster_shows_what_is_allocated(
    client: FlaskClient, connector: Appliance
) -> None:
    assert connector
    text = Browser(client, "alice").fill("fleet-totals.children")
    assert "2 of 2 nodes up, 3 of 8 GPUs allocated, 9 waiting" in text


def test_a_connector_has_charts_of_its_cluster(client: FlaskClient, connector: Appliance) -> None:
    response = refreshed(client, connector.id)
    traces = response["appliance-cluster-gpus"]["figure"]["data"]
    assert [trace["name"] for trace in traces] == ["allocated", "all"]
    assert response["appliance-cluster-waiting"]["figure"]["data"]
    assert "Slurm cluster" in json.dumps(response["appliance-header"])


def test_a_node_has_charts_of_its_own_series(
    client: FlaskClient, connector: Appliance, node_id: str
) -> None:
    response = refreshed(client, node_id)
    traces = response["appliance-cluster-gpus"]["figure"]["data"]
    assert [(trace["name"], trace["y"][-2]) for trace in traces] == [("allocated", 3), ("all", 4)]
    assert response["appliance-cluster-memory"]["figure"]["data"]
    text = json.dumps(response)
    assert "3 / 4" in text
    assert appliance_path(connector.id) in text
    assert "appliance-cpu" not in response


def test_a_job_whose_gpus_the_cluster_does_not_tell_has_no_charts_of_them(
    client: FlaskClient, sessions: SessionFactory, fleet_of_three: Fleet
) -> None:
    path = job_path(fleet_of_three.job.id)

    def hidden_parts() -> int:
        page = Browser(client, "alice").fill("page.children", url_pathname=path)
        return json.dumps(json.loads(page)).count('"hidden": true')

    count = hidden_parts()
    with sessions.begin() as session:
        attempt = session.get_one(Job, fleet_of_three.job.id).attempt
        assert attempt is not None
        attempt.gpu_uuids = requested_gpus(1)
    assert hidden_parts() == count + 2  # the charts, and the processes


def test_a_job_that_ended_before_it_started_has_never_started(
    client: FlaskClient, sessions: SessionFactory, fleet_of_three: Fleet
) -> None:
    with sessions.begin() as session:
        job = session.get_one(Job, fleet_of_three.job.id)
        job.state, job.started_at = JobState.FAILED, None
        for attempt in job.attempts:
            attempt.started_at = None
    text = Browser(client, "alice").fill(
        "job-attempt-memory_bytes.figure", job_path_data=job_path(fleet_of_three.job.id)
    )
    assert "The job never started" in text
