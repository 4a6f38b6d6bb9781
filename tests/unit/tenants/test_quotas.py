"""Quotas: who sets them, and what is refused above them."""

from typing import Any

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.queue.service import submit_job
from jobqueue.states import JobState
from protocol.inventory import Inventory
from protocol.job_spec import JobRequest
from tenants.enrollment import enroll_appliance
from tenants.models import EnrollmentToken
from tenants.quotas import (
    MAX_COUNT,
    QUOTA_REACHED,
    UNLIMITED,
    Limits,
    all_limits,
    read_limits,
    set_limits,
)
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.unit.tenants.helpers import enroll, enrollment_secret


def limit(session: Session, cast: Cast, **limits: int) -> None:
    set_limits(session, scope_of(cast.olivia), cast.acme.id, Limits(**limits))


def inventory(gpus: int) -> dict[str, Any]:
    return {
        "hostname": "x",
        "cpu_count": 8,
        "memory_bytes": 2**36,
        "executors": ["simulated"],
        "gpus": [
            {"index": i, "uuid": f"GPU-{i}", "model": "H100", "memory_bytes": 2**36}
            for i in range(gpus)
        ],
    }


def test_a_tenant_without_quotas_is_unlimited(session: Session, cast: Cast) -> None:
    assert read_limits(session, scope_of(cast.alice), cast.acme.id) == UNLIMITED


def test_the_operator_sets_quotas_and_the_tenants_users_see_them(
    session: Session, cast: Cast
) -> None:
    limit(session, cast, max_appliances=3, max_storage_bytes=2**40)
    limits = read_limits(session, scope_of(cast.bob), cast.acme.id)
    assert limits == Limits(max_appliances=3, max_storage_bytes=2**40)
    assert all_limits(session) == {cast.acme.id: limits}


def test_setting_quotas_again_replaces_all_of_them(session: Session, cast: Cast) -> None:
    limit(session, cast, max_appliances=3)
    limit(session, cast, max_gpus=8)
    assert read_limits(session, scope_of(cast.alice), cast.acme.id) == Limits(max_gpus=8)


def test_an_admin_may_not_set_quotas(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        set_limits(session, scope_of(cast.alice), cast.acme.id, UNLIMITED)


def test_another_tenants_quotas_are_as_good_as_missing(session: Session, cast: Cast) -> None:
    with pytest.raises(NotFoundError):
        read_limits(session, scope_of(cast.charlie), cast.acme.id)


@pytest.mark.parametrize("wrong", [-1, MAX_COUNT + 1])
def test_a_limit_that_is_no_sensible_number_is_refused(
    session: Session, cast: Cast, wrong: int
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        limit(session, cast, max_gpus=wrong)
    assert list(refused.value.errors) == ["max_gpus"]


def test_enrollment_stops_at_the_quota_of_appliances_and_spends_no_token(
    session: Session, cast: Cast
) -> None:
    limit(session, cast, max_appliances=1)
    secret = enrollment_secret(session, cast.alice, uses=2)
    enroll(session, secret, "gpu-01")
    session.commit()
    with pytest.raises(ConflictError, match="1 of at most 1 appliances") as refused:
        enroll(session, secret, "gpu-02")
    session.rollback()
    assert refused.value.code == QUOTA_REACHED
    assert session.query(EnrollmentToken).one().uses_left == 1


def test_an_appliance_out_of_service_frees_quota(session: Session, cast: Cast) -> None:
    limit(session, cast, max_appliances=1)
    first, _ = enroll(session, enrollment_secret(session, cast.alice, uses=1), "gpu-01")
    first.retired_at = NOON
    session.flush()
    enroll(session, enrollment_secret(session, cast.alice, uses=1), "gpu-02")


def test_enrollment_stops_at_the_quota_of_gpus(session: Session, cast: Cast) -> None:
    limit(session, cast, max_gpus=8)
    make_appliance(session, cast.acme, "gpu-01", inventory=inventory(6))
    secret = enrollment_secret(session, cast.alice, uses=2)
    with pytest.raises(ConflictError, match="6 of at most 8 GPUs, and this needs 4 more"):
        enroll_appliance(
            session,
            secret=secret,
            name="gpu-02",
            inventory=msgspec.convert(inventory(4), Inventory),
            now=NOON,
        )
    enroll_appliance(
        session,
        secret=secret,
        name="gpu-03",
        inventory=msgspec.convert(inventory(2), Inventory),
        now=NOON,
    )


def test_another_tenants_quota_is_not_touched(session: Session, cast: Cast) -> None:
    limit(session, cast, max_appliances=0)
    enroll(session, enrollment_secret(session, cast.charlie), "gpu-01")


def test_submission_stops_at_the_quota_of_jobs_until_one_ends(session: Session, cast: Cast) -> None:
    limit(session, cast, max_active_jobs=1)
    make_appliance(session, cast.acme, "gpu-01", inventory=inventory(2))
    request = JobRequest(name="train", image="acme/train:1")
    first = submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)
    with pytest.raises(ConflictError, match="1 of at most 1 active jobs"):
        submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)
    first.state = JobState.SUCCEEDED
    session.flush()
    submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)
