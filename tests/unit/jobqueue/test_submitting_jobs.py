"""Submitting: every field is checked, and what no appliance could run is refused with figures."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, InvalidInputError
from jobqueue.queue.service import submit_job
from jobqueue.states import JobState
from protocol.job_spec import JobRequest
from tenants.models import Role
from tenants.scope import Scope
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, submit


def test_a_submitted_job_carries_its_request(session: Session, cast: Cast) -> None:
    job = submit(session, cast.bob, " train ", command=["python", "-V"], env={"A": "1"}, gpus=2)
    assert (job.name, job.state, job.submitted_at) == ("train", JobState.SUBMITTED, NOON)
    assert (job.tenant_id, job.user_id) == (cast.acme.id, cast.bob.id)
    assert (job.command, job.env, job.gpus) == (["python", "-V"], {"A": "1"}, 2)
    assert job.user is not None
    assert job.user.name == "Bob"
    assert job.attempt is None


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.13",
        "library/python:3.13-slim",
        "nvcr.io/nvidia/pytorch:25.01-py3",
        "localhost:5000/team/app",
        "a__b/c-d",
        "app@sha256:" + "0" * 64,
        "[::1]:5000/a",
        "[2001:db8::7]/team/app:1.2@sha256:" + "0" * 64,
        "Registry.example.com/a",
    ],
)
def test_image_names_that_engines_accept_are_accepted(
    session: Session, cast: Cast, image: str
) -> None:
    assert submit(session, cast.alice, image=image).image == image


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "  "),
        ("name", "x" * 101),
        ("name", "two\nlines"),
        ("image", ""),
        ("image", "Python 3"),
        ("image", "python:"),
        ("image", "-v"),
        ("image", "[::1]:5000/A"),
        ("image", "[:::1]:5000/a"),
        ("image", "[::1/a"),
        ("image", "::1/a"),
        ("image", "host:0/a"),
        ("image", "host:65536/a"),
        ("image", "Acme/train"),
        ("image", "acme/a..b"),
        ("image", "a@sha256:abc"),
        ("image", "a/" * 200 + "b"),
        ("command", ["x" * 70_000]),
        ("command", ["a\0b"]),
        ("env", {"1A": "x"}),
        ("env", {"A": "a\0b"}),
        ("env", {"A": "x" * 70_000}),
        ("gpus", -1),
        ("gpus", 2000),
        ("gpu_memory_bytes", -1),
        ("gpu_compute", -0.1),
        ("gpu_compute", 1.01),
        ("gpu_compute", float("nan")),
        ("gpu_compute", float("inf")),
        ("gpu_slice", "x" * 33),
        ("gpu_slice", "1g.10gb "),
        ("gpu_slice", "1g\n10gb"),
        ("gpu_models", ["H100"]),
        ("cpus", 0.0),
        ("cpus", float("nan")),
        ("cpus", float("inf")),
        ("memory_bytes", 0),
        ("memory_bytes", 2**63),
    ],
)
def test_an_invalid_field_is_named(session: Session, cast: Cast, field: str, value: object) -> None:
    request: Any = JobRequest(name="train", image="python:3.13")
    with pytest.raises(InvalidInputError) as caught:
        submit_job(
            session, scope_of(cast.alice), replace(request, **{field: value}), box=BOX, now=NOON
        )
    assert set(caught.value.errors) == {field}
    assert caught.value.errors[field][0] in caught.value.message


def test_all_invalid_fields_are_named_together(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, "", image="", cpus=-1.0, gpus=-3, memory_bytes=1)
    assert set(caught.value.errors) == {"name", "image", "cpus", "gpus", "memory_bytes"}
    assert caught.value.errors["gpus"] == ["gpus is -3; enter 0 to 1024."]
    assert caught.value.errors["memory_bytes"] == ["memory_bytes is 1; enter 16 MiB or more."]


def test_more_than_any_appliance_has_is_refused_with_the_figures(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    add_appliance(session, cast.acme, "mini-01", gpus=1)
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=16)
    assert caught.value.code == "exceeds_every_appliance"
    assert "16 GPUs, 1 CPU cores and 1 GiB of memory" in caught.value.message
    assert "dgx-01 with 8 GPUs, 64 CPU cores and 512 GiB of memory" in caught.value.message
    assert caught.value.errors == {"gpus": ["16 requested; the most available is 8."]}


def test_gpus_of_unknown_memory_are_refused_as_unknown_and_not_as_zero(
    session: Session, cast: Cast
) -> None:
    appliance = add_appliance(session, cast.acme, "spark-01", gpus=1)
    [gpu] = appliance.inventory["gpus"]
    appliance.inventory = {**appliance.inventory, "gpus": [{**gpu, "memory_bytes": 0}]}
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=1, gpu_memory_bytes=40 * GIB)
    assert caught.value.errors == {
        "gpu_memory_bytes": ["40 GiB requested; the most available is unknown."]
    }


def test_unified_memory_counts_as_that_of_the_gpu(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "spark-01", gpus=1)
    [gpu] = appliance.inventory["gpus"]
    unified = {**gpu, "memory_bytes": 119 * GIB, "has_unified_memory": True}
    appliance.inventory = {**appliance.inventory, "gpus": [unified]}
    assert submit(session, cast.alice, gpus=1, gpu_memory_bytes=100 * GIB).gpu_memory_bytes


def test_a_job_that_needs_two_appliances_is_refused(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01", memory_bytes=GIB)
    add_appliance(session, cast.acme, "big-memory", gpus=0)
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=8, memory_bytes=8 * GIB)
    assert caught.value.code == "exceeds_every_appliance"


def test_another_tenants_larger_appliance_does_not_count(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "mini-01", gpus=1)
    add_appliance(session, cast.globex, "dgx-01")
    with pytest.raises(InvalidInputError, match="mini-01 with 1 GPU"):
        submit(session, cast.alice, gpus=8)


def test_more_gpu_memory_than_any_gpu_has_is_refused(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=1, gpu_memory_bytes=96 * GIB)
    assert caught.value.errors == {
        "gpu_memory_bytes": ["96 GiB requested; the most available is 80 GiB."]
    }


def test_a_job_may_be_submitted_before_the_first_appliance_joins(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "telemetry-only", executors=[])
    assert submit(session, cast.alice, gpus=64).state is JobState.SUBMITTED


def test_a_requested_appliance_must_suffice_itself(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    mini = add_appliance(session, cast.acme, "mini-01", gpus=1)
    with pytest.raises(InvalidInputError, match="mini-01 with 1 GPU"):
        submit(session, cast.alice, gpus=8, appliance_id=mini.id)


def test_another_tenants_appliance_can_not_be_requested(session: Session, cast: Cast) -> None:
    foreign = add_appliance(session, cast.globex, "dgx-01")
    messages = []
    for ident in (foreign.id, "no-such-id"):
        with pytest.raises(InvalidInputError) as caught:
            submit(session, cast.alice, appliance_id=ident)
        assert set(caught.value.errors) == {"appliance_id"}
        messages.append(caught.value.message.replace(ident, "ID"))
    assert messages[0] == messages[1]


def test_a_viewer_may_not_submit(session: Session, cast: Cast) -> None:
    viewer = Scope(user_id=cast.bob.id, role=Role.VIEWER, tenant_id=cast.acme.id)
    with pytest.raises(ForbiddenError):
        submit_job(session, viewer, JobRequest(name="a", image="b"), box=BOX, now=NOON)


def test_the_operator_may_not_submit(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        submit_job(
            session, scope_of(cast.olivia), JobRequest(name="a", image="b"), box=BOX, now=NOON
        )
