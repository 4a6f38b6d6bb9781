"""What a job could get of the GPUs: how many slices are free, of how many, and of which kind."""

# ruff: noqa: ANN401 - builders pass any field on

from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from jobqueue.queue.slice_offers import slices_that_fit
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import JobRequest
from tenants.models import User
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, submit
from tests.unit.jobqueue.mig_gpus import mig_gpus

H100 = "NVIDIA H100 80GB HBM3"


def share(session: Session, cast: Cast, mode: PartitionMode, **changes: Any) -> None:
    """Add an appliance with two H100 that are shared."""
    gpus = mig_gpus("dgx-01", 2, is_enabled=mode is PartitionMode.MIG)
    modes = ["mig", "mps", "time_slicing"]
    add_appliance(session, cast.acme, "dgx-01", gpus=gpus, partition_modes=modes)
    request = PolicyRequest(name="Shared", mode=mode, **changes)
    create_policy(session, scope_of(cast.alice), request, now=NOON)


def offers(
    session: Session, user: User, appliance: str = "", **fields: Any
) -> list[tuple[str, str]]:
    request = JobRequest(name="", image="-", **fields)
    listed = slices_that_fit(session, scope_of(user), request, appliance=appliance, now=NOON)
    return [(offer.title, offer.text) for offer in listed]


def run(session: Session, user: User, **fields: Any) -> None:
    submit(session, user, **fields)
    dispatch(session, now=NOON)


def test_mig_instances_are_counted_by_the_slots_that_are_left(session: Session, cast: Cast) -> None:
    share(session, cast, PartitionMode.MIG)
    small = f"MIG 1g.10gb with 10 GiB on {H100}"
    half = f"MIG 3g.40gb with 40 GiB on {H100}"
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB) == [(small, "14 of 14 free now")]
    assert offers(session, cast.bob, gpu_slice="3g.40gb") == [(half, "4 of 4 free now")]
    run(session, cast.alice, gpu_memory_bytes=8 * GIB)
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB) == [(small, "13 of 14 free now")]
    assert offers(session, cast.bob, gpu_slice="3g.40gb") == [(half, "3 of 4 free now")]


def test_shares_are_as_many_as_the_memory_and_compute_need(session: Session, cast: Cast) -> None:
    share(session, cast, PartitionMode.MPS, shares=4)
    quarter = f"MPS share of 25 % with 20 GiB on {H100}"
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB) == [(quarter, "8 of 8 free now")]
    assert offers(session, cast.bob, gpu_memory_bytes=GIB, gpu_compute=0.5) == [
        (f"MPS share of 50 % with 40 GiB on {H100}", "4 of 4 free now")
    ]
    assert offers(session, cast.bob, gpu_slice="1g.10gb") == []
    # An MPS server serves one user at a time.
    run(session, cast.alice, gpu_memory_bytes=8 * GIB)
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB) == [(quarter, "4 of 8 free now")]
    assert offers(session, cast.alice, gpu_memory_bytes=8 * GIB) == [(quarter, "7 of 8 free now")]


def test_the_isolation_of_the_tenant_counts(session: Session, cast: Cast) -> None:
    share(session, cast, PartitionMode.TIME_SLICING, shares=2)
    title = f"Time slicing share of 50 %, memory not limited on {H100}"
    run(session, cast.alice, gpu_memory_bytes=8 * GIB)
    assert offers(session, cast.bob, gpu_compute=0.5) == [(title, "2 of 4 free now")]
    settings = QueueSettings(
        isolation_between_users=PartitionMode.TIME_SLICING,
        isolation_between_projects=PartitionMode.TIME_SLICING,
    )
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    assert offers(session, cast.bob, gpu_compute=0.5) == [(title, "3 of 4 free now")]


def test_a_whole_gpu_is_offered_where_no_slice_suffices(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01", gpus=4)
    whole = f"Whole GPU with 80 GiB: {H100}"
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB) == [(whole, "4 of 4 free now")]
    run(session, cast.alice, gpus=3)
    assert offers(session, cast.bob, gpus=1) == [(whole, "1 of 4 free now")]
    assert offers(session, cast.bob, gpu_memory_bytes=81 * GIB) == []
    assert offers(session, cast.bob) == []


@pytest.mark.parametrize(
    "fields",
    [{"gpu_models": ["L4"]}, {"required_labels": {"rack": "9"}}, {"appliance": "dgx-99"}],
)
def test_gpus_that_the_job_may_not_use_are_no_offer(
    session: Session, cast: Cast, fields: dict[str, Any]
) -> None:
    share(session, cast, PartitionMode.MIG)
    assert offers(session, cast.bob, gpu_memory_bytes=8 * GIB, **fields) == []


def test_other_tenants_gpus_are_no_offer(session: Session, cast: Cast) -> None:
    share(session, cast, PartitionMode.MIG)
    assert offers(session, cast.charlie, gpu_memory_bytes=8 * GIB) == []
