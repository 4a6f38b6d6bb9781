"""Nodes of clusters on a real MariaDB: reports that arrive at once, and thousands of nodes."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import func, select

from core.db import SessionFactory, transaction
from core.errors import DatabaseUnavailableError
from protocol.clusters import ClusterReport, NodeState
from protocol.inventory import Inventory
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.liveness import sweep_appliances
from tenants.models import Appliance, ApplianceEvent, ApplianceState
from tests.cast import NOON, Cast
from tests.fixtures.clusters import cluster, make_connector, node, nodes_of
from tests.fixtures.racing import race

pytestmark = pytest.mark.needs_mariadb

ROUNDS = 10
TRIES = 5


def beat(sessions: SessionFactory, ident: str, report: ClusterReport, *, seconds: float) -> None:
    """Send a heartbeat until it is recorded, as agents do: a deadlock is answered with 503."""
    at = NOON + timedelta(seconds=seconds)
    inventory = Inventory(hostname="login", executors=["slurm"], cluster=report)
    for attempts_left in reversed(range(TRIES)):
        try:
            with transaction(sessions) as session:
                record_heartbeat(
                    session, ident, inventory=inventory, agent_version="1.0", sent_at=at, now=at
                )
        except DatabaseUnavailableError:
            if not attempts_left:
                raise
        else:
            return


def test_one_report_that_arrives_twice_at_once_adds_each_node_once(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        with sessions.begin() as session:
            ident = str(make_connector(session, cast.acme, name=f"login-{number}").id)
        report = cluster(*[node(f"n{index}") for index in range(20)])
        race([partial(beat, sessions, ident, report, seconds=1)] * 4)
        with sessions() as session:
            connector = session.get_one(Appliance, ident)
            assert len(nodes_of(session, connector)) == 20
            added = select(func.count()).where(
                ApplianceEvent.appliance_id == ident, ApplianceEvent.kind == "nodes"
            )
            assert session.scalar(added) == 1


def test_clusters_that_are_added_at_once_share_no_name(
    sessions: SessionFactory, cast: Cast
) -> None:
    """Names that are cut to 100 characters are the same for all three."""
    with sessions.begin() as session:
        idents = [
            str(make_connector(session, cast.acme, name=f"{'x' * 98}{number}").id)
            for number in range(3)
        ]
    report = cluster(*[node(f"N{index}") for index in range(10)])
    race([partial(beat, sessions, ident, report, seconds=1) for ident in idents])
    with sessions() as session:
        nodes = select(Appliance.name).where(Appliance.connector_id.is_not(None))
        names = list(session.scalars(nodes))
    assert len(names) == len(set(names)) == 30


def test_a_sweep_beside_a_heartbeat_leaves_the_nodes_as_the_connector(
    sessions: SessionFactory, cast: Cast
) -> None:
    report = cluster(*[node(f"n{index}") for index in range(20)])
    with sessions.begin() as session:
        ident = str(make_connector(session, cast.acme, report).id)

    def sweep(seconds: float) -> None:
        with sessions.begin() as session:
            sweep_appliances(
                session,
                now=NOON + timedelta(seconds=seconds),
                stale_after=timedelta(seconds=30),
                unreachable_after=timedelta(seconds=90),
                lost_after=timedelta(seconds=600),
            )

    for number in range(1, ROUNDS + 1):
        seconds = number * 60.0
        race([partial(sweep, seconds), partial(beat, sessions, ident, report, seconds=seconds)])
        with sessions() as session:
            connector = session.get_one(Appliance, ident)
            states = {row.state for row in nodes_of(session, connector).values()}
            assert states == {connector.state}
        beat(sessions, ident, report, seconds=seconds)
    with sessions() as session:
        rows = nodes_of(session, session.get_one(Appliance, ident)).values()
        assert {row.state for row in rows} == {ApplianceState.ONLINE}


def test_thousands_of_nodes_are_followed(sessions: SessionFactory, cast: Cast) -> None:
    nodes = [node(f"node-{index:04}.cluster.example.org", gpus=8) for index in range(2000)]
    with sessions.begin() as session:
        ident = str(make_connector(session, cast.acme, cluster(*nodes)).id)
    down = [node(listed.name, gpus=8, state=NodeState.DOWN) for listed in nodes[:500]]
    beat(sessions, ident, cluster(*down, *nodes[500:1900]), seconds=1)
    with sessions() as session:
        counts = dict(
            session.execute(
                select(Appliance.state, func.count())
                .where(Appliance.connector_id == ident, Appliance.retired_at.is_(None))
                .group_by(Appliance.state)
            ).all()
        )
    assert counts == {ApplianceState.ONLINE: 1400, ApplianceState.UNREACHABLE: 500}
