"""Nodes of clusters: rows that follow what the connector reports."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from core.errors import ConflictError
from protocol.clusters import NodeState, node_gpu_uuid
from protocol.inventory import Inventory
from tenants.enrollment import create_token_for_appliance
from tenants.fleet import nodes
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.fleet.appliance_service import (
    drain_appliance,
    reinstate_appliance,
    retire_appliance,
    revoke_appliance,
)
from tenants.fleet.appliances import ApplianceFilter, Nodes, list_appliances
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.liveness import FleetReachability, sweep_appliances
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, ApplianceEvent, ApplianceState, Tenant, TenantQuota
from tenants.quotas import count_gpus
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.fixtures.clusters import cluster, make_connector, node, nodes_of, report_cluster

SOON = NOON + timedelta(seconds=10)


@pytest.fixture
def acme(session: Session, cast: Cast) -> Tenant:
    return session.get_one(Tenant, cast.acme.id)


def events(session: Session, appliance: Appliance) -> list[tuple[str, str]]:
    """Return kind and message, the oldest first."""
    own = select(ApplianceEvent).where(ApplianceEvent.appliance_id == appliance.id)
    rows = session.scalars(own.order_by(ApplianceEvent.at, ApplianceEvent.id))
    return [(row.kind, row.message) for row in rows]


def statuses(session: Session, connector: Appliance) -> dict[str, EffectiveStatus]:
    return {name: effective_status_of(row) for name, row in nodes_of(session, connector).items()}


def test_nodes_are_appliances_with_capacity(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1", queues=["gpu", "a b", "debug"])))

    row = nodes_of(session, connector)["n1.login"]
    inventory = msgspec.convert(row.inventory, Inventory)
    assert (row.tenant_id, row.state) == (acme.id, ApplianceState.ONLINE)
    assert (inventory.hostname, inventory.cpu_count) == ("n1", 64)
    assert [gpu.uuid for gpu in inventory.gpus] == [node_gpu_uuid(row.id, n) for n in range(4)]
    assert (row.gpu_count, row.gpu_model) == (4, "NVIDIA H100")
    assert row.labels == {"cluster": "hpc", "queue/gpu": "yes", "queue/debug": "yes"}
    assert row.connector is not None
    assert row.connector.name == "login"
    assert connector.cluster_kind == "slurm"
    assert events(session, row) == [
        ("added", "Added: login reports it as a node of hpc."),
    ]
    assert events(session, connector)[-1] == ("nodes", "Nodes: 1 added (n1).")


def test_an_event_with_many_long_names_has_their_numbers(session: Session, acme: Tenant) -> None:
    states = (NodeState.UP, NodeState.DRAINED, NodeState.DOWN)
    long_names = [node(f"{number:099}", state=states[number % 3]) for number in range(9)]
    connector = make_connector(session, acme, cluster(*long_names))
    assert events(session, connector)[-1] == ("nodes", "Nodes: 9 added; 3 drained; 3 down.")


def test_states_and_their_reasons_are_events(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1"), node("n2"), node("n3")))
    report_cluster(
        session,
        connector,
        cluster(
            node("n1", state=NodeState.DOWN, reason="Not responding"),
            node("n2", state=NodeState.DRAINED, reason="bad fan [root]"),
            node("n3"),
        ),
        now=SOON,
    )

    assert statuses(session, connector) == {
        "n1.login": EffectiveStatus.UNREACHABLE,
        "n2.login": EffectiveStatus.DRAINED,
        "n3.login": EffectiveStatus.ONLINE,
    }
    rows = nodes_of(session, connector)
    assert events(session, rows["n1.login"])[-1] == (
        "state",
        "Down, as the cluster reports: Not responding.",
    )
    assert events(session, rows["n2.login"])[-1] == (
        "drained",
        "Drained on the cluster: bad fan [root].",
    )
    assert events(session, connector)[-1] == ("nodes", "Nodes: 1 down (n1); 1 drained (n2).")

    report_cluster(session, connector, cluster(node("n1"), node("n2"), node("n3")), now=SOON)
    assert set(statuses(session, connector).values()) == {EffectiveStatus.ONLINE}
    assert events(session, rows["n1.login"])[-1] == ("state", "Up again.")
    assert events(session, rows["n2.login"])[-1][0] == "undrained"


def test_allocations_change_no_node_and_make_no_event(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1"), node("n2")))
    before = events(session, connector)
    asked: list[str] = []
    engine = session.get_bind()

    def note(*args: Any) -> None:  # noqa: ANN401 - whatever SQLAlchemy hands over
        asked.append(args[2])

    event.listen(engine, "before_cursor_execute", note)
    report_cluster(session, connector, cluster(node("n1", allocated_gpus=2), node("n2")), now=SOON)
    event.remove(engine, "before_cursor_execute", note)

    changes = [statement for statement in asked if not statement.startswith("SELECT")]
    assert len(changes) == 1
    assert events(session, connector) == before
    stored = nodes.cluster_of(connector.inventory)
    assert stored is not None
    assert stored.nodes[0].allocated_gpus == 2


def test_a_heartbeat_that_changes_nothing_is_two_statements(session: Session, acme: Tenant) -> None:
    report = cluster(node("n1"))
    connector = make_connector(session, acme, report)
    asked: list[str] = []
    engine = session.get_bind()

    def note(*args: Any) -> None:  # noqa: ANN401 - whatever SQLAlchemy hands over
        asked.append(args[2].split()[0])

    inventory = Inventory(hostname="login", executors=["slurm"], cluster=report)
    ident = connector.id
    session.commit()
    session.begin()
    event.listen(engine, "before_cursor_execute", note)
    record_heartbeat(
        session, ident, inventory=inventory, agent_version="1.0", sent_at=SOON, now=SOON
    )
    event.remove(engine, "before_cursor_execute", note)
    assert [word for word in asked if word != "BEGIN"] == ["SELECT", "UPDATE"]


def test_nodes_that_are_gone_retire_and_return(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1"), node("n2")))
    ident = nodes_of(session, connector)["n2.login"].id
    report_cluster(session, connector, cluster(node("n1")), now=SOON)
    assert statuses(session, connector)["n2.login"] is EffectiveStatus.RETIRED

    report_cluster(session, connector, cluster(node("n1"), node("n2")), now=SOON)
    row = nodes_of(session, connector)["n2.login"]
    assert row.id == ident
    assert effective_status_of(row) is EffectiveStatus.ONLINE
    assert [kind for kind, _ in events(session, row)] == ["added", "retired", "reinstated"]


def test_an_agent_that_is_no_connector_any_more_retires_its_nodes(
    session: Session, acme: Tenant
) -> None:
    connector = make_connector(session, acme, cluster(node("n1")))
    report_cluster(session, connector, None, now=SOON)
    assert statuses(session, connector)["n1.login"] is EffectiveStatus.RETIRED
    assert connector.cluster_kind == ""


def test_a_cluster_that_could_not_be_read_keeps_its_nodes(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1")))
    report_cluster(session, connector, cluster(problem="slurmctld: refused"), now=SOON)
    assert statuses(session, connector)["n1.login"] is EffectiveStatus.ONLINE
    report_cluster(session, connector, cluster(node("n1")), now=SOON)
    assert len(nodes_of(session, connector)) == 1


def test_capacity_that_changes_is_stored(session: Session, acme: Tenant) -> None:
    connector = make_connector(session, acme, cluster(node("n1")))
    report_cluster(session, connector, cluster(node("n1", gpus=8, cpus=96.0)), now=SOON)
    row = nodes_of(session, connector)["n1.login"]
    assert (row.gpu_count, row.inventory["cpu_count"], len(row.inventory["gpus"])) == (8, 96, 8)


def test_taken_names_get_a_number_and_keep_it(session: Session, acme: Tenant) -> None:
    make_appliance(session, acme, "n1.login")
    names = ["n1", "n 1", "n/1", "x" * 100, "x" * 99 + "y", "\u00e9"]
    report = cluster(*[node(name) for name in names])
    connector = make_connector(session, acme, report)

    rows = nodes_of(session, connector)
    assert {row.inventory["hostname"]: name for name, row in rows.items()} == {
        "n1": "n1.login-2",
        "n 1": "n-1.login",
        "n/1": "n-1.login-2",
        "x" * 100: "x" * 100,
        "x" * 99 + "y": "x" * 99 + "y",
        "\u00e9": "node.login",
    }
    report_cluster(session, connector, cluster(*[node(name, gpus=1) for name in names]), now=SOON)
    assert set(nodes_of(session, connector)) == set(rows)


def test_thousands_of_nodes_with_one_name_each_get_one(session: Session, acme: Tenant) -> None:
    report = cluster(*[node("?" * number) for number in range(1, 31)])
    connector = make_connector(session, acme, report)
    rows = nodes_of(session, connector)
    assert len(rows) == 30
    report_cluster(
        session, connector, cluster(*[node("?" * n, gpus=1) for n in range(1, 31)]), now=SOON
    )
    assert nodes_of(session, connector).keys() == rows.keys()


def test_nodes_follow_the_name_and_place_of_their_connector(
    session: Session, cast: Cast, acme: Tenant
) -> None:
    connector = make_connector(session, acme, cluster(node("n1"), node("n2")))
    changes = ApplianceChanges(name="head", site="berlin")
    change_appliance(session, scope_of(cast.alice), connector.id, changes, now=SOON)
    assert {row.site for row in nodes_of(session, connector).values()} == {"berlin"}
    assert set(nodes_of(session, connector)) == {"n1.head", "n2.head"}


def test_a_connector_changes_only_its_own_nodes(session: Session, cast: Cast, acme: Tenant) -> None:
    globex = session.get_one(Tenant, cast.globex.id)
    ours = make_connector(session, acme, cluster(node("n1"), node("n2")))
    theirs = make_connector(session, globex, cluster(node("n1"), node("n1", gpus=1)))
    beside = make_connector(session, acme, cluster(node("n1")), name="head")
    report_cluster(session, theirs, cluster(node("n1", state=NodeState.DOWN)), now=SOON)
    report_cluster(session, beside, cluster(), now=SOON)

    assert set(statuses(session, ours).values()) == {EffectiveStatus.ONLINE}
    assert statuses(session, theirs) == {"n1.login": EffectiveStatus.UNREACHABLE}
    assert {row.tenant_id for row in nodes_of(session, theirs).values()} == {globex.id}
    # Of two nodes with one name the first counts.
    assert nodes_of(session, theirs)["n1.login"].gpu_count == 4


def test_quotas_limit_the_nodes_that_are_added(session: Session, acme: Tenant) -> None:
    session.add(TenantQuota(tenant_id=acme.id, max_appliances=3, max_gpus=7))
    session.flush()
    report = cluster(node("n1"), node("n2"), node("n3", gpus=0))
    connector = make_connector(session, acme, report)
    assert list(nodes_of(session, connector)) == ["n1.login"]
    assert events(session, connector)[-1] == (
        "nodes",
        (
            "Nodes: 1 added (n1); 2 not added, as they exceed the tenant's quota of appliances or "
            "GPUs."
        ),
    )
    count = len(events(session, connector))
    changed = cluster(node("n1", allocated_gpus=1), node("n2"), node("n3", gpus=0))
    report_cluster(session, connector, changed, now=SOON)
    assert len(events(session, connector)) == count

    session.get_one(TenantQuota, acme.id).max_gpus = None
    session.flush()
    report_cluster(session, connector, report, now=SOON)
    assert list(nodes_of(session, connector)) == ["n1.login", "n2.login"]


def test_gpus_of_a_connector_are_counted_through_its_nodes(session: Session, acme: Tenant) -> None:
    make_connector(session, acme, cluster(node("n1"), node("n2")))
    assert count_gpus(session, acme.id) == 8


def sweep(session: Session, seconds: float) -> None:
    sweep_appliances(
        session,
        now=NOON + timedelta(seconds=seconds),
        stale_after=timedelta(seconds=30),
        unreachable_after=timedelta(seconds=90),
        lost_after=timedelta(seconds=600),
    )


def test_nodes_follow_a_silent_connector_and_return_with_it(session: Session, acme: Tenant) -> None:
    report = cluster(node("n1"), node("n2", state=NodeState.DOWN))
    connector = make_connector(session, acme, report)
    first, second = "n1.login", "n2.login"
    before = events(session, nodes_of(session, connector)[first])

    sweep(session, 60)
    assert statuses(session, connector) == {
        first: EffectiveStatus.STALE,
        second: EffectiveStatus.UNREACHABLE,
    }
    sweep(session, 120)
    assert set(statuses(session, connector).values()) == {EffectiveStatus.UNREACHABLE}
    sweep(session, 700)
    assert set(statuses(session, connector).values()) == {EffectiveStatus.LOST}
    report_cluster(session, connector, report, now=NOON + timedelta(seconds=800))
    assert statuses(session, connector) == {
        first: EffectiveStatus.ONLINE,
        second: EffectiveStatus.UNREACHABLE,
    }
    assert events(session, nodes_of(session, connector)[first]) == before


def test_nodes_have_no_part_in_the_mass_outage_guard(
    session: Session, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_connector(session, acme, cluster(*[node(f"n{number}") for number in range(9)]))
    seen: list[FleetReachability] = []

    def note(_session: Session, reachability: FleetReachability, *, now: datetime) -> bool:
        assert now
        seen.append(reachability)
        return False

    monkeypatch.setattr("tenants.fleet.liveness.update_mass_outage_guard", note)
    sweep(session, 700)
    assert seen == [FleetReachability(1, 1)]


def test_nodes_leave_and_return_with_their_connector(
    session: Session, cast: Cast, acme: Tenant
) -> None:
    alice, report = scope_of(cast.alice), cluster(node("n1"))
    connector = make_connector(session, acme, report)
    retire_appliance(session, alice, connector.id, running_jobs=[], now=SOON)
    assert statuses(session, connector) == {"n1.login": EffectiveStatus.RETIRED}
    reinstate_appliance(session, alice, connector.id, now=SOON)
    report_cluster(session, connector, report, now=SOON)
    assert statuses(session, connector) == {"n1.login": EffectiveStatus.ONLINE}
    revoke_appliance(session, alice, connector.id, now=SOON)
    assert statuses(session, connector) == {"n1.login": EffectiveStatus.RETIRED}


def test_admins_change_nodes_on_the_cluster_only(
    session: Session, cast: Cast, acme: Tenant
) -> None:
    alice = scope_of(cast.alice)
    connector = make_connector(session, acme, cluster(node("n1")))
    ident = nodes_of(session, connector)["n1.login"].id
    refused: list[Any] = [
        lambda: drain_appliance(session, alice, ident, now=SOON),
        lambda: retire_appliance(session, alice, ident, running_jobs=[], now=SOON),
        lambda: revoke_appliance(session, alice, ident, now=SOON),
        lambda: change_appliance(session, alice, ident, ApplianceChanges(name="x"), now=SOON),
        lambda: create_token_for_appliance(
            session, alice, ident, lifetime=timedelta(hours=1), now=SOON
        ),
    ]
    for change in refused:
        with pytest.raises(ConflictError, match=r"'n1\.login' is a node of a cluster") as refusal:
            change()
        assert refusal.value.code == "node_of_cluster"


def test_lists_have_all_nodes_or_those_of_one_cluster_or_none(
    session: Session, cast: Cast, acme: Tenant
) -> None:
    connector = make_connector(session, acme, cluster(node("n1"), node("n2")))
    make_connector(session, acme, cluster(node("n3")), name="head")

    def names(**wanted: Any) -> list[str]:  # noqa: ANN401 - the fields of a filter
        page = list_appliances(session, scope_of(cast.bob), ApplianceFilter(**wanted))
        return [row.name for row in page.items]

    assert names() == ["head", "login", "n1.login", "n2.login", "n3.head"]
    assert names(nodes=Nodes.WITHOUT) == ["head", "login"]
    assert names(nodes=Nodes.ONLY) == ["n1.login", "n2.login", "n3.head"]
    assert names(connector=connector.id) == ["n1.login", "n2.login"]
    assert names(label="queue/gpu") == ["n1.login", "n2.login", "n3.head"]


def test_many_changes_at_once_make_few_events(session: Session, acme: Tenant) -> None:
    count = 300
    connector = make_connector(session, acme, cluster(*[node(f"n{n}") for n in range(count)]))
    assert events(session, connector)[-1][1] == ("Nodes: 300 added (n0, n1, n2, n3 and 296 more).")
    assert len(list(session.scalars(select(ApplianceEvent.id)))) == 201


def test_only_so_many_nodes_that_are_gone_stay(
    session: Session, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MAX_RETIRED", 2)
    connector = make_connector(session, acme)
    for number in range(5):
        now = NOON + timedelta(seconds=number)
        report_cluster(session, connector, cluster(node(f"n{number}")), now=now)
    assert set(nodes_of(session, connector)) == {"n1.login", "n2.login", "n3.login", "n4.login"}
