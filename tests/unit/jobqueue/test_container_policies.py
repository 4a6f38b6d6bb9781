"""Which container policies a tenant's jobs may use."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.settings import PolicyChoice, policies_of, set_policies
from protocol.job_spec import ContainerPolicy
from tests.cast import BOX, Cast, scope_of
from tests.unit.jobqueue.builders import start, submit

RESTRICTED, STANDARD = ContainerPolicy.RESTRICTED, ContainerPolicy.STANDARD
BOTH = PolicyChoice(allowed=[STANDARD, RESTRICTED], default=STANDARD)


def test_a_tenant_that_chose_nothing_has_only_the_restricted_policy(
    session: Session, cast: Cast
) -> None:
    assert policies_of(session, cast.acme.id) == PolicyChoice()
    assert submit(session, cast.bob).container_policy is RESTRICTED
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.bob, container_policy="standard")
    assert list(refused.value.errors) == ["container_policy"]


def test_a_job_has_the_policy_that_it_names_or_the_default(session: Session, cast: Cast) -> None:
    set_policies(session, scope_of(cast.alice), cast.acme.id, BOTH)
    assert submit(session, cast.bob).container_policy is STANDARD
    assert submit(session, cast.bob, container_policy="restricted").container_policy is RESTRICTED


@pytest.mark.parametrize("name", ["privileged", "", "Standard"])
def test_an_unknown_policy_is_refused(session: Session, cast: Cast, name: str) -> None:
    set_policies(session, scope_of(cast.alice), cast.acme.id, BOTH)
    with pytest.raises(InvalidInputError):
        submit(session, cast.bob, container_policy=name)


def test_the_agent_receives_the_policy(session: Session, cast: Cast) -> None:
    set_policies(session, scope_of(cast.alice), cast.acme.id, BOTH)
    attempt = start(session, cast)
    (spec,) = desired_state(session, attempt.appliance_id, box=BOX).attempts
    assert spec.container_policy == "standard"


def test_a_job_keeps_its_policy_when_the_tenant_forbids_it(session: Session, cast: Cast) -> None:
    set_policies(session, scope_of(cast.alice), cast.acme.id, BOTH)
    job = submit(session, cast.bob)
    set_policies(session, scope_of(cast.alice), cast.acme.id, PolicyChoice())
    session.refresh(job)
    assert job.container_policy is STANDARD


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        (PolicyChoice(allowed=[]), "allowed"),
        (PolicyChoice(allowed=[RESTRICTED], default=STANDARD), "default"),
    ],
)
def test_a_default_must_be_allowed(
    session: Session, cast: Cast, choice: PolicyChoice, field: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        set_policies(session, scope_of(cast.alice), cast.acme.id, choice)
    assert list(refused.value.errors) == [field]


def test_only_an_admin_chooses(session: Session, cast: Cast) -> None:
    for user in (cast.bob, cast.olivia):
        with pytest.raises(ForbiddenError):
            set_policies(session, scope_of(user), cast.acme.id, BOTH)


def test_another_tenants_policies_are_not_found(session: Session, cast: Cast) -> None:
    with pytest.raises(NotFoundError):
        set_policies(session, scope_of(cast.charlie), cast.acme.id, BOTH)


def test_another_tenant_is_not_affected(session: Session, cast: Cast) -> None:
    set_policies(session, scope_of(cast.alice), cast.acme.id, BOTH)
    assert policies_of(session, cast.globex.id) == PolicyChoice()
