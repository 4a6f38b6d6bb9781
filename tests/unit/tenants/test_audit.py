"""Every change of an audited row comes into the log, once, with what was and what is."""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import DateTime, delete, select, update
from sqlalchemy.orm import Session

from core.db import Base, SessionFactory
from datasets.models import (
    Dataset,
)
from jobqueue.models import (
    Job,
)
from jobqueue.projects.models import Project
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState
from marketplace.models import Contract
from protocol.job_spec import JobKind
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import SECRET, acting, record, set_actor
from tenants.models import (
    PLATFORM_CHAIN,
    Appliance,
    AuditEntry,
    CertificateAuthority,
    Membership,
    Role,
    Tenant,
    TenantState,
    User,
)
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.tenants.audited_rows import LATER, one_of_each

ALICE = Actor(name="alice@acme.example", via="browser", address="192.0.2.7", user_agent="Firefox/1")


@pytest.fixture
def audited(sessions: SessionFactory, clock: FrozenClock) -> SessionFactory:
    """Sessions on which alice acts."""
    return acting(sessions, ALICE, clock=clock)


def entries(sessions: SessionFactory, **values: object) -> list[AuditEntry]:
    statement = select(AuditEntry).filter_by(**values)
    with sessions() as session:
        return list(session.scalars(statement.order_by(AuditEntry.chain, AuditEntry.number)))


def actions(sessions: SessionFactory, **values: object) -> list[str]:
    return [entry.action for entry in entries(sessions, **values)]


def audited_models() -> Iterator[type[Any]]:
    for mapper in Base.registry.mappers:
        if hasattr(mapper.class_, "audited"):
            yield mapper.class_


def test_every_audited_model_is_tried_below(session: Session, cast: Cast) -> None:
    tried = {type(row) for row in one_of_each(cast, make_appliance(session, cast.acme, "gpu-01"))}
    assert tried == set(audited_models())


def test_each_row_made_changed_and_deleted_is_three_entries(
    cast: Cast, audited: SessionFactory, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "gpu-01")
    for row in one_of_each(cast, appliance):
        how = type(row).audited
        with audited.begin() as session:
            session.add(row)
        with audited.begin() as session:
            session.add(row)
            changed = next(name for name in reversed(how.fields) if _is_changeable(row, name))
            _change(row, changed)
        if isinstance(row, CertificateAuthority | Project | Dataset | Contract):
            continue  # a certificate, member or version below needs it
        with audited.begin() as session:
            session.delete(session.merge(row))
        key = getattr(row, "id", None) or row.tenant_id
        recorded = entries(sessions, target_id=key, target_kind=how.kind)
        per_chain = [entry for entry in recorded if entry.chain == recorded[-1].chain]
        verbs = [entry.action.partition(".")[2] for entry in per_chain]
        assert len(verbs) == 3, (how.kind, verbs)
        assert (verbs[0], verbs[-1]) == (how.created, "deleted"), how.kind
        made, change, gone = per_chain
        assert made.before is None
        assert made.after, how.kind
        assert change.before is not None
        assert set(change.before) == {changed}, how.kind
        assert change.after != change.before
        assert gone.after is None
        assert gone.before, how.kind
        assert made.target_name, how.kind


def _is_changeable(row: object, name: str) -> bool:
    column = type(row).__table__.c[name]  # type: ignore[attr-defined] # a mapped class
    return not column.foreign_keys and not column.primary_key


def _change(row: object, name: str) -> None:
    old, column = getattr(row, name), type(row).__table__.c[name]  # type: ignore[attr-defined] # a mapped class
    kind = column.type.python_type
    new: object
    if isinstance(getattr(column.type, "impl", None), DateTime):
        new = LATER + timedelta(days=2)
    elif hasattr(column.type, "enums"):
        new = next(member for member in kind if member is not old)
    elif kind is bool:
        new = not old
    elif isinstance(old, dict | list):
        new = {"rack": "4"} if isinstance(old, dict) else ["x"]
    else:
        nothing: int | Decimal = Decimal(0) if kind is Decimal else 0
        new = f"{old}-2" if kind is str else (old or nothing) + 1
    setattr(row, name, new)


def test_an_entry_has_actor_address_and_time(
    cast: Cast, audited: SessionFactory, clock: FrozenClock
) -> None:
    clock.advance(60)
    with audited.begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "Acme Robotics"
    (entry,) = entries(audited, chain=cast.acme.id)
    assert (entry.actor_name, entry.via) == ("alice@acme.example", "browser")
    assert (entry.address, entry.user_agent) == ("192.0.2.7", "Firefox/1")
    assert (entry.at, entry.action) == (clock.now, "tenant.renamed")
    assert (entry.before, entry.after) == ({"name": "Acme"}, {"name": "Acme Robotics"})


def test_a_value_that_was_not_read_before_is_recorded_too(
    cast: Cast, audited: SessionFactory
) -> None:
    with audited.begin() as session:
        tenant = session.get_one(Tenant, cast.acme.id)
        session.expire(tenant)
        tenant.name = "Acme Robotics"
    assert entries(audited, chain=cast.acme.id)[0].before == {"name": "Acme"}


def test_secrets_are_recorded_as_changed_and_never_shown(
    cast: Cast, audited: SessionFactory
) -> None:
    with audited.begin() as session:
        bob = session.get_one(User, cast.bob.id)
        old, bob.password_hash = bob.password_hash, "new-hash"
        bob.totp_secret = "new-secret"
        session.flush()
    (entry,) = entries(audited)
    assert entry.before == {"password": SECRET, "second_factor": None}
    assert entry.after == {"password": SECRET, "second_factor": SECRET}
    for secret in (str(old), "new-hash", "new-secret"):
        assert secret not in f"{entry.before}{entry.after}{entry.reason}{entry.target_name}"


def test_what_an_agent_and_loops_write_makes_no_entry(cast: Cast, audited: SessionFactory) -> None:
    with audited.begin() as session:
        appliance = make_appliance(session, cast.acme, "gpu-01")
    with audited.begin() as session:
        stored = session.get_one(Appliance, appliance.id)
        stored.last_seen_at = LATER
        stored.inventory = {"gpus": []}
    assert actions(audited) == ["appliance.enrolled"]


def test_a_change_to_the_current_value_makes_no_entry(cast: Cast, audited: SessionFactory) -> None:
    with audited.begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "Acme"
    assert entries(audited) == []


def test_nothing_is_recorded_of_what_was_rolled_back(cast: Cast, audited: SessionFactory) -> None:
    with audited() as session:
        session.get_one(Tenant, cast.acme.id).name = "Acme Robotics"
        session.flush()
        session.rollback()
        session.get_one(Tenant, cast.globex.id).name = "Globex Labs"
        session.commit()
    assert [entry.target_name for entry in entries(audited)] == ["Globex Labs"] * 2


def test_a_savepoint_that_is_rolled_back_takes_its_entries_along(
    cast: Cast, audited: SessionFactory
) -> None:
    with audited.begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "Acme Robotics"
        with session.begin_nested() as savepoint:
            session.get_one(Tenant, cast.globex.id).name = "Globex Labs"
            session.flush()
            savepoint.rollback()
        with session.begin_nested():
            session.get_one(User, cast.bob.id).name = "Robert"
    assert sorted(actions(audited)) == ["tenant.renamed", "tenant.renamed", "user.renamed"]


def test_two_changes_of_one_row_in_a_transaction_are_one_entry(
    cast: Cast, audited: SessionFactory
) -> None:
    with audited.begin() as session:
        tenant = session.get_one(Tenant, cast.acme.id)
        tenant.name = "A"
        session.flush()
        tenant.name = "B"
        tenant.state = TenantState.SUSPENDED
    (entry,) = entries(audited, chain=cast.acme.id)
    assert (entry.action, entry.target_name) == ("tenant.changed", "B")
    assert entry.before == {"name": "Acme", "state": "active"}
    assert entry.after == {"name": "B", "state": "suspended"}


def test_a_service_names_a_change_and_the_values_are_noticed(
    cast: Cast, audited: SessionFactory, clock: FrozenClock
) -> None:
    with audited.begin() as session:
        tenant = session.get_one(Tenant, cast.acme.id)
        record(
            session,
            action="tenant.suspended",
            target_kind="tenant",
            target_id=tenant.id,
            target_name="Acme",
            tenant_id=tenant.id,
            reason="unpaid",
            now=clock.now,
        )
        tenant.state = TenantState.SUSPENDED
    (entry,) = entries(audited, chain=cast.acme.id)
    assert (entry.action, entry.reason) == ("tenant.suspended", "unpaid")
    assert (entry.before, entry.after) == ({"state": "active"}, {"state": "suspended"})


def test_users_are_recorded_in_the_logs_of_all_their_tenants(
    cast: Cast, sessions: SessionFactory, audited: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.add(
            Membership(
                user_id=cast.bob.id, tenant_id=cast.globex.id, role=Role.VIEWER, created_at=NOON
            )
        )
    with audited.begin() as session:
        session.get_one(User, cast.bob.id).name = "Robert"
        session.get_one(User, cast.olivia.id).name = "Liv"
    chains = {entry.chain for entry in entries(sessions, target_id=cast.bob.id)}
    assert chains == {cast.acme.id, cast.globex.id}
    assert [entry.chain for entry in entries(sessions, target_id=cast.olivia.id)] == [
        PLATFORM_CHAIN
    ]


def test_a_stopped_job_is_recorded_though_its_row_was_changed_by_a_guarded_update(
    cast: Cast, audited: SessionFactory, clock: FrozenClock
) -> None:
    job = Job(
        tenant_id=cast.acme.id,
        user_id=cast.bob.id,
        name="train",
        kind=JobKind.BATCH,
        image="i",
        memory_bytes=1,
        state=JobState.QUEUED,
        submitted_at=NOON,
        queue_at=NOON,
    )
    with audited.begin() as session:
        session.add(job)
    for _ in range(2):
        try:
            with audited.begin() as session:
                stop_job(session, scope_of(cast.bob), job.id, now=clock.now)
        except Exception:  # noqa: BLE001, S110 - stopped already
            pass
    assert actions(audited) == ["job.submitted", "job.stop_requested"]


def test_sessions_without_an_actor_observe_nothing_but_records_are_stored(
    cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "A"
        record(
            session,
            action="session.failed",
            target_kind="user",
            target_id=None,
            target_name="x@y.example",
            tenant_id=None,
            now=clock.now,
        )
    (entry,) = entries(sessions)
    assert (entry.action, entry.actor_name) == ("session.failed", "unknown")


def test_an_actor_can_be_named_while_the_session_is_open(
    cast: Cast, audited: SessionFactory, clock: FrozenClock
) -> None:
    with audited.begin() as session:
        set_actor(session, Actor(name="bob", via="browser"), clock=clock)
        session.get_one(Tenant, cast.acme.id).name = "A"
    assert entries(audited, chain=cast.acme.id)[0].actor_name == "bob"


def test_texts_that_are_too_long_are_cut(
    cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    actor = Actor(name="n" * 400, via="v" * 400, user_agent="u" * 4000)
    with acting(sessions, actor, clock=clock).begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "A"
    entry = entries(sessions, chain=cast.acme.id)[0]
    assert (len(entry.actor_name), len(entry.via), len(entry.user_agent)) == (254, 100, 300)


def test_nothing_refers_to_the_log_so_entries_outlive_their_targets(
    cast: Cast, audited: SessionFactory
) -> None:
    with audited.begin() as session:
        session.get_one(Tenant, cast.globex.id).name = "Globex Labs"
    with audited.begin() as session:
        session.execute(update(User).values(is_active=False))
        session.execute(delete(User).where(User.id == cast.charlie.id))
        session.delete(session.get_one(Tenant, cast.globex.id))
    assert actions(audited, chain=cast.globex.id) == ["tenant.renamed", "tenant.deleted"]
    assert actions(audited, chain=PLATFORM_CHAIN) == ["tenant.renamed", "tenant.deleted"]
