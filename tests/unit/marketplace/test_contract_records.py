"""Contracts in the audit log of both sides, and in emails to the other one."""

from decimal import Decimal

import pytest
from sqlalchemy import select

from alerting.notification.models import Notification
from core.db import SessionFactory
from core.errors import ConflictError
from marketplace.contracts.grants import refresh_contract
from marketplace.contracts.service import end_contract, give_notice, propose_version, take_offer
from marketplace.offers.service import change_offer
from marketplace.terms import terms_hash
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.models import PLATFORM_CHAIN, AuditEntry
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, publish, request, take, terms

CHARLIE = Actor(
    name="charlie@globex.example", via="browser", address="192.0.2.7", user_agent="Firefox/1"
)
URL = "https://portal.example"


@pytest.fixture
def acted(sessions: SessionFactory, clock: FrozenClock) -> SessionFactory:
    """Sessions of charlie."""
    return acting(sessions, CHARLIE, clock=clock)


def entries(sessions: SessionFactory, chain: str) -> list[AuditEntry]:
    statement = select(AuditEntry).where(
        AuditEntry.chain == chain, AuditEntry.action.startswith("contract")
    )
    with sessions() as session:
        return list(session.scalars(statement.order_by(AuditEntry.number)))


def test_both_sides_have_a_change_in_their_audit_logs(
    cast: Cast, sessions: SessionFactory, acted: SessionFactory
) -> None:
    with sessions.begin() as session:
        admit_sides(session, cast)
        add_appliance(session, cast.acme, "dgx-01")
        offer = publish(session, cast, "dgx-01")
    with acted.begin() as session:
        contract = take(session, cast, offer)
    with acted.begin() as session:
        give_notice(session, scope_of(cast.charlie), contract.id, now=NOON)
    own, foreign = entries(sessions, cast.globex.id), entries(sessions, cast.acme.id)
    for recorded in (own, foreign):
        assert [entry.action for entry in recorded] == [
            "contract.version_accepted",
            "contract.noticed",
        ]
        assert {entry.actor_name for entry in recorded} == {CHARLIE.name}
        assert recorded[0].after == {
            "version": 1,
            "terms_hash": terms_hash(offer.decoded_terms),
        }
    assert own[0].address == "192.0.2.7"
    assert (foreign[0].address, foreign[0].user_agent, foreign[0].actor_id) == ("", "", None)
    platform = [entry.action for entry in entries(sessions, PLATFORM_CHAIN)]
    assert platform == ["contract.created", "contract_version.created", "contract.changed"]


def test_a_customer_sees_what_changed_since_the_offer_was_read(
    cast: Cast, sessions: SessionFactory, acted: SessionFactory
) -> None:
    with sessions.begin() as session:
        admit_sides(session, cast)
        add_appliance(session, cast.acme, "dgx-01")
        offer = publish(session, cast, "dgx-01")
    changed = request("dgx-01", terms=terms(price=Decimal("2.5"), max_gpus=4))
    with acted.begin() as session:
        change_offer(session, scope_of(cast.alice), offer.id, changed, now=NOON)
    old = terms_hash(offer.decoded_terms)
    with acted.begin() as session, pytest.raises(ConflictError) as refused:
        take_offer(session, scope_of(cast.charlie), offer.id, terms_hash=old, now=NOON)
    assert refused.value.message.startswith(
        "The terms have changed: price is 2.5, was 2; max_gpus is 4, was 0."
    )


def test_the_other_sides_admins_get_an_email(cast: Cast, sessions: SessionFactory) -> None:
    with sessions.begin() as session:
        admit_sides(session, cast)
        add_appliance(session, cast.acme, "dgx-01")
        offer = publish(session, cast, "dgx-01")
        hashed, charlie = terms_hash(offer.decoded_terms), scope_of(cast.charlie)
        contract = take_offer(session, charlie, offer.id, terms_hash=hashed, now=NOON, mail_url=URL)
        alice = scope_of(cast.alice)
        propose_version(
            session, alice, contract.id, terms(price=Decimal(3)), now=NOON, mail_url=URL
        )
        give_notice(session, charlie, contract.id, now=NOON, mail_url=URL)
        refresh_contract(session, contract.id, now=NOON, mail_url=URL)
    with sessions() as session:
        sent = [
            (row.address, row.payload["text"], row.payload["link"])
            for row in session.scalars(select(Notification).order_by(Notification.id))
        ]
    link = f"{URL}/contracts/{contract.id}"
    about, seen = "The contract about H100s in Oslo with Globex", cast.alice.email
    other = "The contract about H100s in Oslo with Acme"
    assert sent == [
        (seen, f"{about} has version 1 of its terms, which Globex accepted.", link),
        (
            cast.charlie.email,
            f"{other} has version 2 of its terms, which Acme proposed.",
            link,
        ),
        (seen, f"{about} was given notice: it ends at 2026-03-02 12:00 UTC.", link),
        (seen, f"{about} has ended.", link),
        (cast.charlie.email, f"{other} has ended.", link),
    ]


def test_without_a_mail_server_nothing_waits_in_the_outbox(
    cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        admit_sides(session, cast)
        add_appliance(session, cast.acme, "dgx-01")
        contract = take(session, cast, publish(session, cast, "dgx-01"))
        olivia = scope_of(cast.olivia)
        end_contract(session, olivia, contract.id, reason="Fraud", now=NOON)
        assert session.scalars(select(Notification)).all() == []
