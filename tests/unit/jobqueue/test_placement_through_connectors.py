"""What a job may request of a cluster, and what its nodes count for."""

from typing import Any

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.capacity import list_capacities
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.queue.pending import explain_job
from jobqueue.queue.project_use import use_of_projects
from jobqueue.simulation.export import record
from jobqueue.usage.measuring import Period
from protocol.attempts import ObservedState
from protocol.clusters import ClusterQueue, requested_gpus
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, noon_ns, report
from tests.unit.jobqueue.cluster_attempts import HOUR, add_connector, add_node, assign, submit
from tests.unit.jobqueue.cluster_builders import full, node
from tests.unit.jobqueue.cluster_builders import report as cluster_report


def test_a_job_can_request_a_cluster_but_none_of_its_nodes(session: Session, cast: Cast) -> None:
    connector = add_connector(session, cast.acme)
    row = add_node(session, connector)
    attempt = assign(session, cast, appliance_id="slurm-a")
    assert attempt.appliance_id == connector.id
    for wanted in (row.id, row.name):
        with pytest.raises(InvalidInputError) as caught:
            submit(session, cast.alice, appliance_id=wanted)
        [text] = caught.value.errors["appliance_id"]
        assert text == (
            f"{wanted!r} is a node of a cluster, whose own queue chooses the node; request "
            "'slurm-a'."
        )


def test_a_job_that_no_node_could_ever_run_is_refused(session: Session, cast: Cast) -> None:
    add_connector(session, cast.acme, node("n1"), node("n2"))
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=8)
    assert "The largest is slurm-a with 4 GPUs, 64 CPU cores and 512 GiB" in caught.value.message
    assert submit(session, cast.alice, gpus=4, gpu_models=["h100"])


def test_the_connector_is_told_which_models_a_job_may_have(session: Session, cast: Cast) -> None:
    nodes = [
        node("n1", gpu_model="NVIDIA H100 NVL"),
        *(node(f"n{number}", gpu_model="NVIDIA H100 80GB HBM3") for number in (2, 3)),
        node("n4", gpu_model="A100-40", gpu_memory_bytes=40 * GIB),
        node("n5", gpu_model="A100-40", gpu_memory_bytes=40 * GIB),
        node("n6", gpu_model="A100-40", gpu_memory_bytes=40 * GIB),
        node("n7", gpu_model="", gpu_memory_bytes=80 * GIB),
    ]
    connector = add_connector(session, cast.acme, *nodes)
    wanted: dict[str, dict[str, Any]] = {
        "any": {},
        "of a model": {"gpu_models": ["h100"]},
        "of memory": {"gpu_memory_bytes": 80 * GIB},
        "of both": {"gpu_models": ["nvl", "a100"], "gpu_memory_bytes": 80 * GIB},
    }
    attempts = {
        name: assign(session, cast, name=name, gpus=1, **fields) for name, fields in wanted.items()
    }
    assign(session, cast, name="without GPUs")

    def told() -> dict[str, list[str]]:
        state = desired_state(session, connector.id, box=BOX)
        return {spec.name: spec.gpu_models for spec in state.attempts}

    h100 = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"]
    assert told() == {
        "any": [],
        "of a model": h100,
        "of memory": h100,
        "of both": ["NVIDIA H100 NVL"],
        "without GPUs": [],
    }
    # Those with room come first, and words that match nothing more are the cluster's to refuse.
    inventory = dict(connector.inventory)
    changed = [
        full("n2", gpu_model="NVIDIA H100 80GB HBM3"),
        node("n1", gpu_model="NVIDIA H100 NVL"),
    ]
    connector.inventory = inventory | {"cluster": msgspec.to_builtins(cluster_report(*changed))}
    connector.report_id = "changed"
    session.flush()
    assert told()["of a model"] == h100[::-1]
    none = msgspec.to_builtins(cluster_report(node("n1", gpu_model="B200")))
    connector.inventory = inventory | {"cluster": none}
    connector.report_id = "changed again"
    session.flush()
    assert told()["of a model"] == ["h100"]
    assert attempts["any"].gpu_uuids == requested_gpus(1)


def test_an_appliance_is_told_no_models(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx")
    job = submit(session, cast.alice, gpus=1, gpu_memory_bytes=GIB)
    dispatch(session, now=NOON)
    [spec] = desired_state(session, appliance.id, box=BOX).attempts
    assert (spec.job_id, spec.gpu_models) == (job.id, [])


def test_a_job_waits_for_the_nodes_of_its_partition(session: Session, cast: Cast) -> None:
    queues = [ClusterQueue(name="gpu"), ClusterQueue(name="short", time_limit_seconds=1800)]
    nodes = [full("n1", queues=["gpu"]), node("n2", queues=["short"])]
    add_connector(session, cast.acme, *nodes, queues=queues)
    fields: dict[str, Any] = {"gpus": 2, "image": ""}
    busy = assign(session, cast, cluster_options={"slurm.partition": "gpu"}, **fields)
    assert busy.job.message == "No appliance is free. slurm-a queues the job."
    options = {"slurm.partition": "short"}
    first = assign(session, cast, name="first", cluster_options=options, **fields)
    assert first.job.message == "slurm-a was the first free appliance."
    # The cluster's report does not have that job yet.
    second = assign(session, cast, name="second", cluster_options=options, **fields)
    third = assign(session, cast, name="third", cluster_options=options, **fields)
    assert second.job.message == first.job.message
    assert third.job.message == busy.job.message
    fields |= {"command": ["true"], "cluster_options": options, "time_limit_seconds": 3600}
    long = submit(session, cast.alice, **fields)
    dispatch(session, now=NOON)
    explanation = explain_job(session, scope_of(cast.alice), long.id, now=NOON)
    assert explanation is not None
    [rejection] = explanation.decision.rejections
    assert (rejection.code, str(rejection)) == (
        "partition_refuses",
        "slurm-a: its partition short allows at most 30m, 1h requested",
    )


def test_pages_count_the_nodes_of_a_cluster_and_not_its_connector(
    session: Session, cast: Cast
) -> None:
    add_connector(session, cast.acme, node("n1", allocated_gpus=1), full("n2"))
    [capacity] = list_capacities(session, scope_of(cast.alice)).items
    assert (capacity.gpus, capacity.usable_gpus, capacity.free_gpus) == (8, 8, 3)
    assert capacity.summary == "3 of 8 usable GPUs free"
    assert use_of_projects(session, cast.acme.id) == []
    attempt = assign(session, cast, gpus=4)
    explanation = explain_job(
        session, scope_of(cast.alice), submit(session, cast.alice, command=["true"]).id, now=NOON
    )
    assert explanation is not None
    assert explanation.decision.appliance_id == attempt.appliance_id


def test_a_recording_has_the_nodes_as_appliances(session: Session, cast: Cast) -> None:
    connector = add_connector(session, cast.acme, node("n1"), node("n2", gpus=2))
    add_node(session, connector)
    attempt = assign(session, cast, gpus=2, appliance_id="slurm-a")
    report(session, attempt, ObservedState.RUNNING, node="n1", started_at_ns=noon_ns())
    period = Period(NOON - HOUR, NOON + HOUR)
    recording, _ = record(session, cast.acme.id, period, now=NOON + HOUR)
    assert [(recorded.name, len(recorded.gpus)) for recorded in recording.appliances] == [
        ("n1.slurm-a", 4),
        ("n2.slurm-a", 2),
    ]
    [job] = recording.jobs
    assert (job.gpus, job.appliance) == (2, "")
    hidden, _ = record(session, cast.acme.id, period, is_anonymous=True, now=NOON + HOUR)
    assert [recorded.name for recorded in hidden.appliances] == [
        "appliance-1-node-1",
        "appliance-1-node-2",
    ]
