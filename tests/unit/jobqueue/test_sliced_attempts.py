"""Slices through the queue: from a request to the attempt's slice, the agent's orders, and back."""

from sqlalchemy.orm import Session

from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.models import Job
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from protocol.gpu_slices import GPUPartition, GPUSlice, MIGPlacement, PartitionMode
from tenants.models import Appliance
from tests.cast import BOX, NOON, Cast, make_appliance
from tests.unit.jobqueue.builders import (
    GIB,
    add_appliance,
    dispatch,
    gpu_uuid,
    inventory,
    report,
    submit,
)
from tests.unit.jobqueue.mig_gpus import mig_gpus


def add_policy(session: Session, cast: Cast, mode: PartitionMode, **changes: object) -> None:
    """Let the tenant share all its GPUs in a mode."""
    fields = {"name": mode.value, "tenant_id": cast.acme.id, "created_at": NOON, **changes}
    session.add(GPUPartitionPolicy(mode=mode, **fields))
    session.flush()


def cut_appliance(session: Session, cast: Cast, *, is_enabled: bool = True) -> Appliance:
    """An appliance with two GPUs of Hopper, whose agent knows slices."""
    modes = ["mig", "mps", "time_slicing"]
    report = {**inventory("dgx-01"), "partition_modes": modes}
    report["gpus"] = mig_gpus("dgx-01", 2, is_enabled=is_enabled)
    return make_appliance(session, cast.acme, "dgx-01", inventory=report)


def placed(session: Session, job: Job) -> Job:
    """The job after a round of placement."""
    dispatch(session, now=NOON)
    session.refresh(job)
    return job


def test_an_attempt_has_the_slice_that_its_agent_makes(session: Session, cast: Cast) -> None:
    add_policy(session, cast, PartitionMode.MIG, layout=["3g.40gb", "1g.10gb"])
    cut_appliance(session, cast)
    job = placed(session, submit(session, cast.alice, gpu_slice="1g.10gb"))
    attempt = job.attempt
    assert attempt is not None
    layout = [MIGPlacement(profile="3g.40gb", start=0), MIGPlacement(profile="1g.10gb", start=4)]
    desired = desired_state(session, attempt.appliance_id, box=BOX)
    assert desired.gpu_partitions == [
        GPUPartition(gpu_uuid=gpu_uuid("dgx-01", index), mode=PartitionMode.MIG, layout=layout)
        for index in range(2)
    ]
    assert desired.attempts[0].gpu_uuids == [gpu_uuid("dgx-01", 0)]
    assert desired.attempts[0].gpu_slice == GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=gpu_uuid("dgx-01", 0),
        share_milli=125,
        memory_bytes=10 * GIB,
        profile="1g.10gb",
        start=4,
        slots=1,
    )
    report(session, attempt, ObservedState.RUNNING, gpu_slice_uuid="MIG-7")
    assert (attempt.state, (attempt.gpu_slice or {})["uuid"]) == (AttemptState.RUNNING, "MIG-7")
    assert job.gpu_slice == "1g.10gb"
    view = tenant_views(session, cast.acme.id)[0]
    assert view.running[0].gpu_milli == 125
    second = placed(session, submit(session, cast.alice, gpu_slice="1g.10gb")).attempt
    assert second is not None
    assert second.gpu_uuids == [gpu_uuid("dgx-01", 1)]


def test_a_slice_that_cannot_be_made_is_tried_elsewhere(session: Session, cast: Cast) -> None:
    add_policy(session, cast, PartitionMode.MIG)
    cut_appliance(session, cast)
    job = placed(session, submit(session, cast.alice, gpu_slice="7g.80gb"))
    attempt = job.attempt
    assert attempt is not None
    why = "The driver refuses the instance: in use. Stop the program on GPU 0."
    report(session, attempt, ObservedState.FAILED, reason="gpu_slice_failed", message=why)
    assert (attempt.reason, attempt.message) == (Reason.GPU_SLICE_FAILED, why)
    assert job.state is JobState.QUEUED


def test_gpus_change_their_mode_before_they_get_jobs(session: Session, cast: Cast) -> None:
    appliance = cut_appliance(session, cast, is_enabled=True)
    # No policy: MIG is switched off again, and until then no job starts.
    waiting = placed(session, submit(session, cast.alice, gpus=1))
    assert waiting.state is JobState.QUEUED
    assert "2 to be partitioned anew once idle" in waiting.message
    [order, _] = desired_state(session, appliance.id, box=BOX).gpu_partitions
    assert (order.mode, order.layout) == (PartitionMode.WHOLE, [])
    add_policy(session, cast, PartitionMode.MPS, shares=4)
    still = placed(session, submit(session, cast.alice, gpu_compute=0.25))
    assert still.state is JobState.QUEUED


def test_agents_without_slices_keep_whole_gpus(session: Session, cast: Cast) -> None:
    add_policy(session, cast, PartitionMode.TIME_SLICING, shares=4)
    add_appliance(session, cast.acme, "dgx-01", gpus=2)
    job = placed(session, submit(session, cast.alice, gpu_compute=0.25))
    assert job.attempt is not None
    assert job.attempt.gpu_slice is None
    assert "so it gets a whole one" in job.attempt.placement["reason"]


def test_policies_of_another_tenant_count_for_nothing(session: Session, cast: Cast) -> None:
    add_policy(session, cast, PartitionMode.MPS, shares=4, tenant_id=cast.globex.id)
    cut_appliance(session, cast, is_enabled=False)
    job = placed(session, submit(session, cast.alice, gpu_compute=0.25))
    assert job.attempt is not None
    assert job.attempt.gpu_slice is None
    assert desired_state(session, job.attempt.appliance_id, box=BOX).gpu_partitions == []


def test_a_job_that_waited_for_a_slice_has_it_when_it_starts(session: Session, cast: Cast) -> None:
    add_policy(session, cast, PartitionMode.MIG)
    cut_appliance(session, cast)
    whole = [submit(session, cast.alice, f"all-{n}", gpu_slice="7g.80gb") for n in range(2)]
    waiting = placed(session, submit(session, cast.alice, gpu_slice="1g.10gb"))
    assert waiting.attempt is not None
    assert waiting.attempt.state is AttemptState.BOUND
    session.refresh(whole[0])
    assert whole[0].attempt is not None
    report(session, whole[0].attempt, ObservedState.SUCCEEDED, exit_code=0)
    attempt = placed(session, waiting).attempt
    assert attempt is not None
    assert (attempt.state, (attempt.gpu_slice or {})["profile"]) == (
        AttemptState.STARTING,
        "1g.10gb",
    )
