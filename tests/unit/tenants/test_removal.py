"""The removal of a tenant: exported first, then deleted, and begun again after a crash."""

import json
import zipfile
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import JSON, Column, Enum, false, select
from sqlalchemy.orm import Session

from alerting.rules.platform_rules import forget_tenant
from core.clock import to_ns
from core.db import Base, SessionFactory
from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from core.ids import new_id
from jobqueue.logs.log_files import LogFiles
from marketplace.charges.models import BillingLine, LineKind
from marketplace.invoices.models import ClosedLine, Closing
from tenants.auditing.chain import verify_all
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.lifecycle.removal import (
    discard_export,
    export_file,
    find_removal,
    get_removal,
    list_removals,
    request_removal,
    set_tenant_state,
)
from tenants.lifecycle.removal_worker import SETTLE, Remover, run_removals
from tenants.models import (
    AuditEntry,
    Membership,
    RemovalState,
    Role,
    Tenant,
    TenantRemoval,
    TenantState,
    User,
)
from tenants.quotas import Limits, set_limits
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from timeseries.points import Point
from timeseries.store import Store, write


@pytest.fixture
def remover(sessions: SessionFactory, store: Store, tmp_path: Path, clock: FrozenClock) -> Remover:
    acted = acting(sessions, Actor(name="scheduler", via="scheduler"), clock=clock)
    return Remover(
        sessions=acted,
        store=store,
        logs=LogFiles(str(tmp_path / "logs")),
        folder=tmp_path / "exports",
        delete_images=lambda _slug: None,
        forget=forget_tenant,
        clock=clock,
        is_stopping=lambda: False,
    )


@pytest.fixture
def doomed(remover: Remover, cast: Cast, store: Store, clock: FrozenClock) -> str:
    """acme with an appliance and samples, closed and asked to be removed; the removal's id."""
    for tenant in (cast.acme, cast.globex):
        point = Point("cpu", {}, {"usage_percent": 50.0}, to_ns(NOON))
        assert write(store, [point], identity={"tenant": tenant.id, "appliance": "a"}) == []
    with remover.sessions.begin() as session:
        make_appliance(session, cast.acme, "gpu-01")
        make_appliance(session, cast.globex, "gpu-01")
        operator = scope_of(cast.olivia)
        set_limits(session, operator, cast.acme.id, Limits(max_gpus=8))
        set_tenant_state(session, operator, cast.acme.id, TenantState.CLOSED, now=NOON)
        made = ask(session, cast)
    clock.advance(SETTLE.total_seconds())
    return made.id


def ask(session: Session, cast: Cast, *, name: str = "Acme") -> TenantRemoval:
    return request_removal(
        session, scope_of(cast.olivia), cast.acme.id, name=name, by="olivia", now=NOON
    )


def test_an_active_tenant_can_not_be_removed(session: Session, cast: Cast) -> None:
    with pytest.raises(ConflictError, match="Close it first"):
        ask(session, cast)


def test_the_name_has_to_be_typed(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError, match="Type the tenant's name"):
        ask(session, cast, name="acme")


def test_an_admin_can_not_remove_their_tenant(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        request_removal(
            session, scope_of(cast.alice), cast.acme.id, name="Acme", by="alice", now=NOON
        )


def test_a_tenant_is_removed_once(session: Session, cast: Cast) -> None:
    set_tenant_state(session, scope_of(cast.olivia), cast.acme.id, TenantState.CLOSED, now=NOON)
    ask(session, cast)
    with pytest.raises(ConflictError, match="already being removed"):
        ask(session, cast)


def test_a_closed_tenant_is_closed_for_good(session: Session, cast: Cast) -> None:
    operator = scope_of(cast.olivia)
    set_tenant_state(session, operator, cast.acme.id, TenantState.CLOSED, now=NOON)
    with pytest.raises(ConflictError, match="closed permanently"):
        set_tenant_state(session, operator, cast.acme.id, TenantState.ACTIVE, now=NOON)


def test_nothing_of_the_tenant_is_left_and_others_are_untouched(
    remover: Remover, doomed: str, cast: Cast, store: Store, session: Session
) -> None:
    assert run_removals(remover) == 1
    for table in Base.metadata.sorted_tables:
        if "tenant_id" in table.c and table.name != "tenant_removals":
            rows = session.execute(select(table).where(table.c.tenant_id == cast.acme.id)).all()
            assert rows == [], table.name
    assert session.get(Tenant, cast.acme.id) is None
    assert session.get(User, cast.alice.id) is None
    assert session.get(User, cast.charlie.id) is not None
    assert store.measurements(tenants=(cast.acme.id,)) == []
    assert store.measurements(tenants=(cast.globex.id,)) == ["cpu"]
    removal = get_removal(session, scope_of(cast.olivia), doomed)
    assert removal.state is RemovalState.REMOVED
    assert list_removals(session, scope_of(cast.olivia)).items == [removal]


def test_no_table_and_no_store_names_anything_of_the_tenant(
    remover: Remover, doomed: str, cast: Cast, store: Store
) -> None:
    """Every table that can have rows of a tenant has one, whatever tables there will be."""
    assert doomed
    with remover.sessions.begin() as session:
        names = fill_tables(session, tenant_id=cast.acme.id, user_id=cast.bob.id)
    files = LogFiles(str(remover.folder.parent / "logs"))
    files.write(f"{cast.acme.id}/job/1.log", iter([b"epoch 1"]))
    files.write(f"{cast.globex.id}/job/1.log", iter([b"epoch 1"]))
    deleted_images: list[str] = []
    assert run_removals(replace(remover, delete_images=deleted_images.append)) == 1
    with remover.sessions() as session:
        remaining = {
            table.name
            for table in Base.metadata.sorted_tables
            for row in session.execute(select(table)).all()
            if any(name in repr(row) for name in names)
        }
    # The list of removals, the platform's log of them, and what others earn by the tenant.
    earned = {"billing_lines", "billing_closings", "billing_closed_lines"}
    assert remaining == {"tenant_removals", "audit_entries", *earned}
    assert store.measurements(tenants=(cast.acme.id,)) == []
    assert files.names() == [cast.globex.id]
    assert deleted_images == ["acme"]


def test_what_others_earn_by_the_tenant_remains_without_its_jobs(
    remover: Remover, doomed: str, cast: Cast
) -> None:
    assert doomed
    with remover.sessions.begin() as session:
        for number, provider_id in enumerate((cast.globex.id, None)):
            line = BillingLine(
                tenant_id=cast.acme.id,
                provider_id=provider_id,
                contract_id=provider_id and "contract",
                kind=LineKind.USAGE,
                at=NOON,
                recorded_at=NOON,
                amount=Decimal(2),
                user_id=cast.bob.id,
                project_id="project",
                job_name="secret",
            )
            closing = Closing(
                month_at=NOON,
                scope_key=str(number),
                tenant_id=cast.acme.id,
                provider_id=provider_id,
                contract_id=line.contract_id,
            )
            session.add_all([line, closing])
            session.flush()
            session.add(ClosedLine(line_id=line.id, closing_id=closing.id))
    assert run_removals(remover) == 1
    with remover.sessions() as session:
        line = session.scalars(select(BillingLine)).one()
        assert (line.provider_id, line.amount) == (cast.globex.id, Decimal(2))
        assert (line.user_id, line.project_id, line.job_name) == (None, None, "")
        assert session.scalars(select(Closing.provider_id)).all() == [cast.globex.id]
        assert session.scalars(select(ClosedLine.line_id)).all() == [line.id]


def fill_tables(session: Session, *, tenant_id: str, user_id: str) -> set[str]:
    """Insert a row into every table; return the ids of those that belong to the tenant."""
    references: dict[str, object] = {"tenants": tenant_id, "users": user_id}
    owned = set(references)
    for table in Base.metadata.sorted_tables:
        if table.name in {*references, "tenant_removals"}:
            continue
        parents = {
            key.column.table.name for key in table.foreign_keys if key.ondelete != "SET NULL"
        }
        if "tenant_id" in table.c or owned & parents:
            owned.add(table.name)
        key = next(iter(table.primary_key.columns))
        own = table.c.tenant_id == tenant_id if "tenant_id" in table.c else false()
        present = session.scalar(select(key).where(own))
        if present is None:
            row = {
                column.name: filled(column, references, tenant_id)
                for column in table.columns
                if column.computed is None
            }
            session.execute(table.insert().values(row))
            present = row[key.name]
        references[table.name] = present
    return {str(references[name]) for name in owned if len(str(references[name])) > 30}


def filled(column: Column[Any], references: dict[str, object], tenant_id: str) -> object:
    """Return a value for a column: of a parent's row, or a new one of its type."""
    for key in column.foreign_keys:
        return references.get(key.column.table.name)
    if column.name in {"tenant_id", "tenant_ids"}:
        return tenant_id if column.name == "tenant_id" else [tenant_id]
    kind = column.type
    if isinstance(kind, Enum):
        return next(iter(kind.enum_class or ()))
    if isinstance(kind, JSON):
        return {}
    values: dict[type, object] = {
        str: new_id()[: getattr(kind, "length", None) or 36],
        bytes: b"x",
        datetime: NOON,
        date: NOON.date(),
        bool: False,
        Decimal: Decimal(1),
    }
    return values.get(kind.python_type, 1)


def test_a_user_of_another_tenant_remains(
    remover: Remover, doomed: str, cast: Cast, session: Session
) -> None:
    assert doomed
    with remover.sessions.begin() as other_session:
        other_session.add(
            Membership(
                user_id=cast.bob.id, tenant_id=cast.globex.id, role=Role.VIEWER, created_at=NOON
            )
        )
    run_removals(remover)
    assert [
        membership.tenant_id for membership in session.get_one(User, cast.bob.id).memberships
    ] == [cast.globex.id]


def test_the_export_contains_everything_except_secrets(
    remover: Remover, doomed: str, cast: Cast, session: Session, tmp_path: Path
) -> None:
    files = LogFiles(str(tmp_path / "logs"))
    files.write(f"{cast.acme.id}/job/1.log", iter([b"epoch ", b"1"]))
    files.write(f"{cast.globex.id}/job/2.log", iter([b"of another tenant"]))
    run_removals(remover)
    path = export_file(session, scope_of(cast.olivia), doomed, folder=remover.folder, now=NOON)
    assert path.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    tables = tmp_path / "unpacked" / "tables"
    users = [json.loads(line) for line in (tables / "users.jsonl").read_text().splitlines()]
    assert sorted(user["email"] for user in users) == ["alice@acme.example", "bob@acme.example"]
    assert "password_hash" not in users[0]
    (appliance,) = (tables / "appliances.jsonl").read_text().splitlines()
    assert json.loads(appliance)["name"] == "gpu-01"
    assert "secret_hash" not in json.loads(appliance)
    (quota,) = (tables / "tenant_quotas.jsonl").read_text().splitlines()
    assert json.loads(quota)["max_gpus"] == 8
    assert "tenant.closed" in (tables / "audit_entries.jsonl").read_text()
    log = tmp_path / "unpacked" / "logs" / "job" / "1.log"
    assert log.read_bytes() == b"epoch 1"
    samples = pq.read_table(tmp_path / "unpacked" / "samples" / "cpu.parquet")
    assert samples.column("usage_percent").to_pylist() == [50.0]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(after, marks=() if after % 12 == 4 else pytest.mark.nightly)
        for after in range(1, 40, 3)
    ],
)
def test_a_process_that_dies_anywhere_leaves_a_removal_that_another_ends(
    remover: Remover, doomed: str, cast: Cast, after: int
) -> None:
    class DiedError(BaseException):
        """The process is gone."""

    asked = 0

    def die() -> bool:
        nonlocal asked
        asked += 1
        if asked == after:
            raise DiedError
        return False

    with suppress(DiedError):
        run_removals(replace(remover, is_stopping=die))
    run_removals(remover)
    with remover.sessions() as session:
        assert get_removal(session, scope_of(cast.olivia), doomed).state is RemovalState.REMOVED
    assert [path.suffix for path in remover.folder.iterdir()] == [".zip"]


def test_stopping_the_process_interrupts_the_removal(
    remover: Remover, doomed: str, cast: Cast, session: Session
) -> None:
    assert run_removals(replace(remover, is_stopping=lambda: True)) == 0
    assert get_removal(session, scope_of(cast.olivia), doomed).state is RemovalState.EXPORTING
    assert session.get(Tenant, cast.acme.id) is not None


def test_a_removal_that_fails_says_why_and_deletes_nothing(
    remover: Remover, doomed: str, cast: Cast, session: Session, tmp_path: Path
) -> None:
    (tmp_path / "exports").write_text("a file in the way")
    assert run_removals(remover) == 0
    removal = get_removal(session, scope_of(cast.olivia), doomed)
    assert removal.state is RemovalState.EXPORTING
    assert "exports" in removal.error
    assert session.get(Tenant, cast.acme.id) is not None


def test_a_tenant_whose_images_can_not_be_deleted_now_is_removed_later(
    remover: Remover, doomed: str, cast: Cast
) -> None:
    deleted: list[str] = []

    def refuse(_slug: str) -> None:
        raise UnavailableError("The registry does not answer.")

    assert run_removals(replace(remover, delete_images=refuse)) == 0
    with remover.sessions() as session:
        removal = get_removal(session, scope_of(cast.olivia), doomed)
        assert removal.error == "The registry does not answer."
        assert session.get(Tenant, cast.acme.id) is not None
    assert run_removals(replace(remover, delete_images=deleted.append)) == 1
    assert deleted == ["acme"]


def test_removal_starts_after_agents_are_refused(
    remover: Remover, doomed: str, clock: FrozenClock
) -> None:
    assert doomed
    clock.advance(-1)
    assert run_removals(remover) == 0


def test_the_platforms_log_records_it_and_the_chains_are_whole(
    remover: Remover, doomed: str, cast: Cast, session: Session
) -> None:
    assert doomed
    run_removals(remover)
    entries = session.scalars(
        select(AuditEntry.action).where(AuditEntry.target_id == cast.acme.id)
    ).all()
    assert entries[-4:] == [
        "tenant.removal_requested",
        "tenant.exported",
        "tenant.rows_deleted",
        "tenant.removed",
    ]
    verdicts = verify_all(session)
    assert [result.problem for result in verdicts] == [""] * len(verdicts)
    assert cast.acme.id not in {result.head.chain for result in verdicts}


def test_an_export_is_discarded_by_hand_and_then_gone(
    remover: Remover, doomed: str, cast: Cast, session: Session
) -> None:
    operator = scope_of(cast.olivia)
    with pytest.raises(ConflictError, match="still being removed"):
        discard_export(session, operator, doomed, folder=remover.folder, now=NOON)
    session.rollback()
    run_removals(remover)
    discard_export(session, operator, doomed, folder=remover.folder, now=NOON)
    assert list(remover.folder.iterdir()) == []
    with pytest.raises(NotFoundError):
        export_file(session, operator, doomed, folder=remover.folder, now=NOON)


def test_a_removal_is_found_by_its_tenant(session: Session, doomed: str, cast: Cast) -> None:
    removal = find_removal(session, cast.acme.id)
    assert removal is not None
    assert removal.id == doomed
