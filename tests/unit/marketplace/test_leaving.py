"""Tenants are removed once what they rented, or rented out, is invoiced."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.rules.platform_rules import forget_tenant
from core.db import SessionFactory
from jobqueue.logs.log_files import LogFiles
from marketplace.charges.models import BillingLine
from marketplace.invoices.leaving import unsettled
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.models import Contract
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.lifecycle.removal import request_removal, set_tenant_state
from tenants.lifecycle.removal_worker import Remover, run_removals
from tenants.models import Tenant, TenantRemoval, TenantState
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.rentals import rent
from tests.unit.marketplace.ledger import (
    HOUR,
    MARCH,
    accrue_all,
    add_contract,
    add_use,
    terms,
)
from tests.unit.marketplace.months import DUE, close, record_until
from timeseries.store import Store

SOON = MARCH + 5 * HOUR
WAITS = "Waits until rentals of 2026-03 are invoiced, on 2026-04-03 or soon after."


@pytest.fixture
def contract(session: Session, cast: Cast) -> Contract:
    """Acme rents from Globex."""
    made = add_contract(session, cast, terms())
    session.commit()
    return made


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
        waits_for=lambda session, ident: unsettled(session, ident, now=SOON),
        clock=clock,
        is_stopping=lambda: False,
    )


def request(session: Session, cast: Cast, tenant: Tenant) -> TenantRemoval:
    olivia = scope_of(cast.olivia)
    at = MARCH - timedelta(days=400)  # long ago for any clock
    set_tenant_state(session, olivia, tenant.id, TenantState.CLOSED, now=at)
    made = request_removal(session, olivia, tenant.id, name=tenant.name, by="olivia", now=at)
    session.commit()
    return made


def test_a_customer_is_removed_once_its_provider_has_the_statement(
    session: Session, sessions: SessionFactory, cast: Cast, contract: Contract, remover: Remover
) -> None:
    add_use(session, cast.acme.id, MARCH, contract=contract)
    session.commit()
    accrue_all(sessions, now=SOON)
    removal = request(session, cast, cast.acme)

    assert run_removals(remover) == 0
    session.refresh(removal)
    assert removal.error == WAITS
    assert session.scalars(select(BillingLine)).all()

    assert close(sessions) == [MARCH]
    assert run_removals(remover) == 1
    session.expire_all()
    kinds = {row.kind: row.tenant_id for row in session.scalars(select(BillingDocument))}
    assert kinds == {DocumentKind.STATEMENT: cast.globex.id}


def test_both_sides_wait_and_others_do_not(
    session: Session, sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    add_use(session, cast.acme.id, MARCH, contract=contract)
    session.commit()
    sides = (cast.acme.id, cast.globex.id)
    # Neither the row of the ledger nor its line are invoiced.
    assert [unsettled(session, ident, now=SOON) for ident in sides] == [WAITS, WAITS]
    session.commit()
    accrue_all(sessions, now=SOON)
    assert [unsettled(session, ident, now=SOON) for ident in sides] == [WAITS, WAITS]
    session.commit()
    assert close(sessions) == [MARCH]
    assert [unsettled(session, ident, now=DUE) for ident in sides] == ["", ""]


def test_use_of_own_appliances_is_not_waited_for(
    session: Session, sessions: SessionFactory, cast: Cast
) -> None:
    add_use(session, cast.acme.id, MARCH)
    session.commit()
    accrue_all(sessions, now=SOON)
    assert unsettled(session, cast.acme.id, now=SOON) == ""


def test_an_attempt_that_is_not_in_the_ledger_yet_is_waited_for(
    session: Session, cast: Cast
) -> None:
    appliance = make_appliance(session, cast.globex, "gpu-01")
    appliance.inventory = {"gpus": []}
    attempt = rent(session, cast.alice, appliance, gpus=0, now=MARCH).attempt
    attempt.provider_id = cast.globex.id
    session.commit()
    assert unsettled(session, cast.acme.id, now=SOON) == WAITS
    assert unsettled(session, cast.globex.id, now=SOON) == WAITS
    attempt.finished_at = MARCH + HOUR
    record_until(session, MARCH + HOUR)
    session.commit()
    assert unsettled(session, cast.acme.id, now=SOON) == ""
