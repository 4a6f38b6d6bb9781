"""Connectors of clusters and their nodes, in pages and API."""

import re
from typing import Any

import pytest

from core.db import SessionFactory
from jobqueue.models import Attempt
from jobqueue.states import AttemptState, JobState
from protocol.clusters import ClusterKind, ClusterQueue, NodeState, requested_gpus
from tenants.models import Appliance, ApplianceState
from tests.cast import Cast
from tests.fixtures.clusters import GIB, cluster, make_connector, node, nodes_of, report_cluster
from tests.unit.jobqueue.builders import add_appliance, submit
from tests.unit.portal.conftest import Browser

REPORT = cluster(
    node("n1", allocated_cpus=32.0, allocated_memory_bytes=128 * GIB, allocated_gpus=1),
    node("n2", state=NodeState.DRAINED, reason="bad fan"),
    node("n3", state=NodeState.DOWN, reason="Not responding", gpus=0, gpu_model=""),
    waiting_jobs=1234,
)


@pytest.fixture
def connector(sessions: SessionFactory, cast: Cast) -> str:
    with sessions.begin() as session:
        return str(make_connector(session, cast.acme, REPORT).id)


@pytest.fixture
def nodes(sessions: SessionFactory, connector: str) -> dict[str, str]:
    """The ids of the nodes by name."""
    with sessions() as session:
        rows = nodes_of(session, session.get_one(Appliance, connector))
        return {name: row.id for name, row in rows.items()}


@pytest.fixture
def job(sessions: SessionFactory, cast: Cast, connector: str, nodes: dict[str, str]) -> str:
    """A job of bob's that runs on n1; the cluster does not tell its GPUs."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx")
        made = submit(session, cast.bob, gpus=2)
        made.state, made.started_at = JobState.RUNNING, made.submitted_at
        attempt = Attempt(
            tenant_id=cast.acme.id,
            job_id=made.id,
            number=1,
            appliance_id=connector,
            node_id=nodes["n1.login"],
            state=AttemptState.RUNNING,
            gpu_uuids=requested_gpus(2),
            bound_at=made.submitted_at,
            started_at=made.submitted_at,
        )
        session.add(attempt)
        return str(made.id)


def api(browser: Browser, path: str) -> Any:  # noqa: ANN401 - JSON
    return browser.get(f"/api/v1/{path}").json


def test_the_list_has_connectors_with_their_nodes_as_figures(
    alice: Browser, connector: str, nodes: dict[str, str]
) -> None:
    text = alice.get("/appliances").text
    assert f'href="/appliances?connector={connector}"' in text
    assert ">Slurm</a>" in text
    assert "3 nodes" in text
    assert not any(ident in text for ident in nodes.values())
    for query in (
        "nodes=all",
        "nodes=only",
        f"connector={connector}",
        "search=n1",
        "label=queue/gpu",
    ):
        assert nodes["n1.login"] in alice.get(f"/appliances?{query}").text, query
    only = alice.get("/appliances?nodes=only").text
    assert "node of <a" in only
    assert not re.search(r'name="appliance_id"|data-bulk-all', only)


def test_a_fleet_without_clusters_has_no_filter_for_nodes(alice: Browser) -> None:
    assert 'name="nodes"' not in alice.get("/appliances").text


def test_a_cluster_whose_nodes_have_no_queues_has_no_column_for_them(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    queues = [ClusterQueue(name="team-a")]
    report = cluster(node("w1", queues=[]), kind=ClusterKind.KUBERNETES, name="", queues=queues)
    with sessions.begin() as session:
        connector = make_connector(session, cast.acme, report, name="k8s")
        ident, worker = connector.id, nodes_of(session, connector)["w1.k8s"].id
    text = alice.get(f"/appliances/{ident}").text
    assert "team-a" in text
    assert ">Queues<" not in text
    assert "Time limit" not in text
    assert (
        "reports it as a node of a Kubernetes cluster." in alice.get(f"/appliances/{worker}").text
    )


def test_the_page_of_a_connector_shows_its_cluster_and_nodes(
    alice: Browser, connector: str, nodes: dict[str, str], job: str
) -> None:
    text = alice.get(f"/appliances/{connector}").text
    for part in (
        "Slurm cluster",
        "24.11.5",
        "1,234, of all users",
        "3 with 8 GPUs",
        "without an image",
        ">Partitions<",
        "bad fan",
        "Not responding",
        "32 of 64",
        "128 GiB of 512 GiB",
        "1 of 4",
        f'href="/appliances/{nodes["n1.login"]}"',
        f'href="/jobs/{job}"',
        "closed",
    ):
        assert part in text, part
    assert "As of" not in text
    assert f"/appliances/{connector}/storage" not in text
    order = re.findall(r'href="/appliances/([0-9a-f-]{36})">n\d</a>', text)
    assert order == [nodes[f"n{number}.login"] for number in (3, 2, 1)]
    by_name = alice.get(f"/appliances/{connector}?sort=name").text
    order = re.findall(r'href="/appliances/([0-9a-f-]{36})">n\d</a>', by_name)
    assert order == [nodes[f"n{number}.login"] for number in (1, 2, 3)]


def test_problems_and_stale_reports_are_shown_with_what_to_do(
    alice: Browser, sessions: SessionFactory, connector: str, nodes: dict[str, str]
) -> None:
    with sessions.begin() as session:
        row = session.get_one(Appliance, connector)
        report_cluster(session, row, cluster(*REPORT.nodes, problem="slurmctld: <b>refused</b>"))
    text = alice.get(f"/appliances/{connector}").text
    assert "slurmctld: &lt;b&gt;refused&lt;/b&gt;" in text
    assert "vedette agent check" in text
    with sessions.begin() as session:
        session.get_one(Appliance, connector).state = ApplianceState.STALE
    assert "As of" in alice.get(f"/appliances/{connector}").text
    assert "As of" in alice.get(f"/appliances/{nodes['n1.login']}").text


def test_a_cluster_without_nodes_says_so(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        ident = make_connector(session, cast.acme, cluster(queues=[])).id
    assert "The cluster reports no nodes" in alice.get(f"/appliances/{ident}").text


def test_a_page_beyond_the_last_of_the_nodes_leads_back(alice: Browser, connector: str) -> None:
    assert "This page is empty" in alice.get(f"/appliances/{connector}?page=9").text


def test_the_page_of_a_node_has_no_agent(
    alice: Browser, connector: str, nodes: dict[str, str], job: str
) -> None:
    first = alice.get(f"/appliances/{nodes['n1.login']}").text
    for part in (
        f'href="/appliances/{connector}"',
        "Slurm: hpc",
        "1 of 4",
        "80 GiB each",
        f'href="/jobs/{job}"',
        "queue/gpu",
    ):
        assert part in first, part
    for part in ("Certificate", "Clock skew", "Drain</a>", "Revoke", "/storage", "Edit"):
        assert part not in first, part
    assert "bad fan" in alice.get(f"/appliances/{nodes['n2.login']}").text
    third = alice.get(f"/appliances/{nodes['n3.login']}").text
    assert "Down, as the cluster reports" in third
    assert "This node has no GPUs" in third


def test_a_node_that_is_gone_stays_as_removed(
    alice: Browser, sessions: SessionFactory, connector: str, nodes: dict[str, str]
) -> None:
    with sessions.begin() as session:
        report_cluster(session, session.get_one(Appliance, connector), cluster(REPORT.nodes[0]))
    text = alice.get(f"/appliances/{nodes['n2.login']}").text
    assert "Removed" in text
    assert api(alice, f"appliances/{nodes['n2.login']}")["node"] is None


@pytest.mark.parametrize("page", ["edit", "drain"])
def test_pages_that_change_appliances_refuse_nodes(
    alice: Browser, nodes: dict[str, str], page: str
) -> None:
    answer = alice.get(f"/appliances/{nodes['n1.login']}/{page}")
    assert answer.status_code == 409
    assert "is a node of a cluster" in answer.text


def test_the_page_of_a_job_shows_its_node(alice: Browser, nodes: dict[str, str], job: str) -> None:
    text = alice.get(f"/jobs/{job}").text
    assert f'href="/appliances/{nodes["n1.login"]}">n1.login</a>' in text
    assert "2 GPUs, chosen by the cluster" in text
    assert "requested-0" not in text
    assert nodes["n1.login"] in alice.get("/jobs").text


def test_the_api_shows_clusters_and_nodes(
    alice: Browser, connector: str, nodes: dict[str, str]
) -> None:
    shown = api(alice, f"appliances/{connector}")
    assert (shown["cluster_kind"], shown["connector"], shown["node"]) == ("slurm", None, None)
    assert shown["cluster"]["waiting_jobs"] == 1234
    assert [queue["name"] for queue in shown["cluster"]["queues"]] == ["gpu", "debug", "old"]
    assert "cluster" not in shown["inventory"]

    own = api(alice, f"appliances/{nodes['n1.login']}")
    assert own["connector"] == {"id": connector, "name": "login"}
    assert (own["cluster_kind"], own["cluster"]) == ("", None)
    assert (own["node"]["name"], own["node"]["allocated_gpus"]) == ("n1", 1)
    assert own["last_seen_at"] == shown["last_seen_at"]

    listed = api(alice, f"appliances?connector={connector}&sort=-name")
    assert [item["name"] for item in listed["items"]] == ["n3.login", "n2.login", "n1.login"]
    assert api(alice, "appliances?nodes=without")["total"] == 1
    assert api(alice, "appliances")["total"] == 4


def test_the_api_lists_the_nodes_of_a_cluster_sorted_and_paged(
    alice: Browser, connector: str, nodes: dict[str, str]
) -> None:
    page = api(alice, f"appliances/{connector}/nodes?sort=-allocated_gpus,name&page_size=2")
    assert (page["total"], page["page_size"]) == (3, 2)
    assert [item["name"] for item in page["items"]] == ["n1.login", "n2.login"]
    assert page["items"][1]["status"] == "drained"
    assert page["items"][1]["node"]["reason"] == "bad fan"
    assert api(alice, f"appliances/{nodes['n1.login']}/nodes")["total"] == 0
    assert alice.get(f"/api/v1/appliances/{connector}/nodes?sort=x").status_code == 422


def test_the_api_shows_and_finds_jobs_by_their_node(
    alice: Browser, connector: str, nodes: dict[str, str], job: str
) -> None:
    shown = api(alice, f"jobs/{job}")
    expected = {"id": nodes["n1.login"], "name": "n1.login"}
    assert shown["node"] == shown["attempt"]["node"] == expected
    for ident, total in ((connector, 1), (nodes["n1.login"], 1), (nodes["n2.login"], 0)):
        assert len(api(alice, f"jobs?appliance_id={ident}")["items"]) == total


def test_actions_on_nodes_are_conflicts(alice: Browser, nodes: dict[str, str]) -> None:
    ident = nodes["n1.login"]
    for action in ("drain", "undrain", "retire", "reinstate", "revoke", "release"):
        answer = alice.call("POST", f"/api/v1/appliances/{ident}/{action}", json={})
        assert (answer.status_code, (answer.json or {})["code"]) == (409, "node_of_cluster"), action
    bulk = {"appliance_ids": list(nodes.values()), "action": "drain"}
    answer = alice.call("POST", "/api/v1/appliances/bulk", json=bulk)
    assert answer.status_code == 409
    assert set((answer.json or {})["errors"]) == set(nodes.values())


def test_another_tenant_sees_nothing(
    charlie: Browser, connector: str, nodes: dict[str, str]
) -> None:
    for path in (f"appliances/{connector}/nodes", f"appliances/{nodes['n1.login']}"):
        assert charlie.get(f"/api/v1/{path}").status_code == 404
    assert api(charlie, f"appliances?connector={connector}")["total"] == 0
    assert charlie.get(f"/appliances/{nodes['n1.login']}").status_code == 404


def test_a_job_without_an_attempt_has_no_node(
    alice: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx")
        ident = submit(session, cast.bob).id
    assert api(alice, f"jobs/{ident}")["node"] is None
