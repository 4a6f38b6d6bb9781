"""Clusters with their nodes, and attempts on them."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.models import Attempt, Job, JobEvent
from protocol.clusters import ClusterNode, node_gpu_uuid
from tenants.models import Appliance, Tenant, User
from tests.cast import NOON, Cast, make_appliance
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch
from tests.unit.jobqueue.builders import submit as submit_any
from tests.unit.jobqueue.cluster_builders import node
from tests.unit.jobqueue.cluster_builders import report as cluster_report

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MODEL = "NVIDIA H100"


def add_connector(
    session: Session, tenant: Tenant, *nodes: ClusterNode, **changes: Any
) -> Appliance:
    """Add the connector of a cluster, whose own host has GPUs that no job gets."""
    cluster = msgspec.to_builtins(cluster_report(*(nodes or (node("n1"),)), **changes))
    return add_appliance(session, tenant, "slurm-a", executors=["slurm"], cluster=cluster)


def add_node(session: Session, connector: Appliance, name: str = "n1") -> Appliance:
    """Add the row of a node as the connector's heartbeats do."""
    row = make_appliance(session, connector.tenant, f"{name}.{connector.name}")
    row.connector_id = connector.id
    row.inventory = {
        "hostname": name,
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "gpus": [
            {
                "index": index,
                "uuid": node_gpu_uuid(row.id, index),
                "model": MODEL,
                "memory_bytes": 80 * GIB,
            }
            for index in range(4)
        ],
    }
    session.flush()
    return row


def submit(session: Session, user: User, **changes: Any) -> Job:
    """Submit a job with a command, which Slurm requires."""
    return submit_any(session, user, **({"command": ["train"]} | changes))


def assign(session: Session, cast: Cast, **changes: Any) -> Attempt:
    """Submit a job of Alice's, and dispatch it to the cluster."""
    job = submit(session, cast.alice, **changes)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert job.attempt is not None
    return job.attempt


def messages(session: Session, job: Job) -> list[str]:
    events = select(JobEvent).where(JobEvent.job_id == job.id).order_by(JobEvent.id)
    return [event.message for event in session.scalars(events)]
