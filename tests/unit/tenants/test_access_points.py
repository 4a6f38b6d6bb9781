"""Access points: what operators may configure, and what is wrong with relays."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from core.ids import hash_secret
from protocol.access_points import MAX_ACCESS_POINTS
from tenants.fleet.access_points import (
    AccessPointKind,
    AccessPointRequest,
    AccessPointState,
    ListedAccessPoint,
    access_point_problems,
    change_access_point,
    create_access_point,
    delete_access_point,
    get_access_point,
    list_access_points,
    normalized_url,
    renew_relay_token,
)
from tenants.fleet.agents import registry_revision
from tenants.models import AccessPoint, ApplianceState, Tenant
from tests.cast import NOON, Cast, make_appliance, scope_of

PUBLIC_URL = "https://portal.example"
FRANKFURT = AccessPointRequest(name="Frankfurt", url="https://fra.portal.example")
RELAY = replace(FRANKFURT, kind=AccessPointKind.RELAY)


def create(
    session: Session, cast: Cast, request: AccessPointRequest = FRANKFURT, **changed: object
) -> ListedAccessPoint:
    wanted = replace(request, **changed)  # type: ignore[arg-type]
    return create_access_point(
        session, scope_of(cast.olivia), wanted, public_url=PUBLIC_URL, now=NOON
    )


def change(session: Session, cast: Cast, ident: str, **changes: object) -> ListedAccessPoint:
    return change_access_point(
        session, scope_of(cast.olivia), ident, changes, public_url=PUBLIC_URL, now=NOON
    )


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        (" HTTPS://Fra.Portal.example:443/ ", "https://fra.portal.example"),
        ("http://10.0.0.7:80", "http://10.0.0.7"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
        ("https://portal_2.example:8443", "https://portal_2.example:8443"),
        ("https://fra.example/path", None),
        ("https://fra.example?", None),
        ("https://fra.example#x", None),
        ("https://user@fra.example", None),
        ("https://fra.example:0", None),
        ("https://fra.example:65536", None),
        ("https://fra .example", None),
        ("https://[::1", None),
        ("https://[fe80::1%25eth0]", None),
        ("https://", None),
        ("https://..", None),
        ("https://müller.example", None),
        ("ftp://fra.example", None),
        ("fra.example", None),
        ("https://" + "a." * 130 + "example", None),
        ("", None),
    ],
)
def test_addresses_are_compared_in_one_form(text: str, normalized: str | None) -> None:
    assert normalized_url(text) == normalized


def test_only_operators_may_see_and_change_them(session: Session, cast: Cast) -> None:
    made = create(session, cast)
    scope = scope_of(cast.alice)
    with pytest.raises(ForbiddenError):
        create_access_point(session, scope, FRANKFURT, public_url=PUBLIC_URL, now=NOON)
    with pytest.raises(ForbiddenError):
        list_access_points(session, scope, now=NOON)
    with pytest.raises(ForbiddenError):
        delete_access_point(session, scope, made.point.id)


def test_only_a_relay_gets_a_token_which_is_stored_as_a_hash(session: Session, cast: Cast) -> None:
    direct = create(session, cast)
    relay = create(session, cast, RELAY, name="Oslo", url="https://osl.portal.example")
    assert (direct.secret, direct.kind) == ("", AccessPointKind.DIRECT)
    assert relay.secret.startswith("vdr_")
    assert relay.point.secret_hash == hash_secret(relay.secret)
    assert get_access_point(session, scope_of(cast.olivia), relay.point.id, now=NOON).secret == ""
    with pytest.raises(ConflictError, match="no relay"):
        renew_relay_token(session, scope_of(cast.olivia), direct.point.id, now=NOON)


def test_the_agent_api_learns_of_each_change_of_a_relay(session: Session, cast: Cast) -> None:
    relay = create(session, cast, RELAY).point
    revisions = [registry_revision(session)]
    renew_relay_token(session, scope_of(cast.olivia), relay.id, now=NOON)
    revisions.append(registry_revision(session))
    change(session, cast, relay.id, tenant_id=cast.acme.id)
    revisions.append(registry_revision(session))
    delete_access_point(session, scope_of(cast.olivia), relay.id)
    revisions.append(registry_revision(session))
    assert revisions == sorted(set(revisions))
    with pytest.raises(NotFoundError):
        get_access_point(session, scope_of(cast.olivia), relay.id, now=NOON)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", " "),
        ("name", "x" * 101),
        ("name", "a\nb"),
        ("region", "x" * 101),
        ("weight", -1),
        ("weight", 1001),
        ("tenant_id", "nobody"),
        ("url", "https://fra.portal.example/agents"),
        ("url", "http://fra.portal.example"),
    ],
)
def test_each_invalid_field_is_named(
    session: Session, cast: Cast, field: str, value: object
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        create(session, cast, FRANKFURT, **{field: value})
    assert list(refusal.value.errors) == [field]
    made = create(session, cast)
    with pytest.raises(InvalidInputError) as refusal:
        change(session, cast, made.point.id, **{field: value})
    assert list(refusal.value.errors) == [field]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://10.1.2.3", "http://localhost"])
def test_beside_tls_each_address_has_it(session: Session, cast: Cast, url: str) -> None:
    # Agents refuse the whole list otherwise.
    with pytest.raises(InvalidInputError):
        create(session, cast, url=url)
    assert (
        create_access_point(
            session, scope_of(cast.olivia), replace(FRANKFURT, url=url), public_url=url, now=NOON
        ).point.url
        == url
    )


@pytest.mark.parametrize("field", ["name", "url"])
def test_names_and_addresses_are_unique(session: Session, cast: Cast, field: str) -> None:
    create(session, cast)
    other = create(session, cast, name="Oslo", url="https://osl.portal.example").point
    taken = {"name": "Frankfurt", "url": "https://FRA.portal.example:443/"}[field]
    with pytest.raises(InvalidInputError) as refusal:
        change(session, cast, other.id, **{field: taken})
    assert list(refusal.value.errors) == [field]


def test_what_a_change_leaves_out_stays(session: Session, cast: Cast) -> None:
    made = create(session, cast, RELAY, region="eu-central", tenant_id=cast.acme.id)
    point = change(session, cast, made.point.id, weight=0).point
    assert (point.name, point.region, point.weight) == ("Frankfurt", "eu-central", 0)
    assert (point.tenant_id, point.secret_hash) == (cast.acme.id, hash_secret(made.secret))
    assert change(session, cast, point.id, tenant_id=None).point.tenant_id is None


def test_no_appliance_gets_more_than_its_list_may_have(session: Session, cast: Cast) -> None:
    for number in range(MAX_ACCESS_POINTS - 2):
        session.add(AccessPoint(name=f"{number}", url=f"https://{number}.example", created_at=NOON))
    create(session, cast, tenant_id=cast.acme.id)
    # Another tenant has room for one, all tenants together have none.
    other = create(session, cast, name="g", url="https://g.example", tenant_id=cast.globex.id)
    with pytest.raises(ConflictError, match="63 access points"):
        create(session, cast, name="x", url="https://x.example")
    with pytest.raises(ConflictError, match="63 access points"):
        change(session, cast, other.point.id, tenant_id=cast.acme.id)
    assert change(session, cast, other.point.id, weight=5).point.weight == 5


def test_a_direct_access_point_has_the_agents_that_use_it(session: Session, cast: Cast) -> None:
    point = create(session, cast).point
    scope = scope_of(cast.olivia)
    assert get_access_point(session, scope, point.id, now=NOON).state is AccessPointState.UNUSED
    acme = session.get_one(Tenant, cast.acme.id)
    for number in range(3):
        appliance = make_appliance(session, acme, f"gpu-{number}")
        appliance.access_point = point.url
    appliance.state = ApplianceState.LOST
    session.flush()
    [listed] = list_access_points(session, scope, now=NOON).items
    assert (listed.agents, listed.state) == (2, AccessPointState.IN_USE)


def test_a_relay_is_silent_without_reports(session: Session, cast: Cast) -> None:
    relay = create(session, cast, RELAY).point
    scope = scope_of(cast.olivia)

    def listed_after(seconds: float) -> tuple[AccessPointState, int]:
        now = NOON + timedelta(seconds=seconds)
        listed = get_access_point(session, scope, relay.id, now=now)
        return listed.state, listed.agents

    assert listed_after(999) == (AccessPointState.NEVER_SEEN, 0)
    assert access_point_problems(session, now=NOON) == []
    relay.seen_at, relay.agents = NOON, 40
    session.flush()
    assert listed_after(40) == (AccessPointState.ANSWERING, 40)
    assert listed_after(41) == (AccessPointState.SILENT, 0)
    [problem] = access_point_problems(session, now=NOON + timedelta(minutes=1))
    assert problem.startswith("The relay Frankfurt is silent.")


def test_operators_learn_of_a_spool_that_fills_up(session: Session, cast: Cast) -> None:
    relay = create(session, cast, RELAY).point
    relay.seen_at, relay.max_spool_bytes, relay.spool_bytes = NOON, 1000, 800
    session.flush()
    assert access_point_problems(session, now=NOON) == []
    relay.spool_bytes = 801
    session.flush()
    [problem] = access_point_problems(session, now=NOON)
    assert "almost full" in problem
    relay.spool_bytes, relay.undeliverable_bytes = 0, 1
    session.flush()
    [problem] = access_point_problems(session, now=NOON)
    assert "undeliverable.log" in problem


def test_the_access_points_of_a_tenant_end_with_it(session: Session, cast: Cast) -> None:
    create(session, cast, RELAY, tenant_id=cast.globex.id)
    create(session, cast, name="Oslo", url="https://osl.portal.example")
    session.delete(session.get_one(Tenant, cast.globex.id))
    session.flush()
    assert session.scalars(select(AccessPoint.name)).all() == ["Oslo"]
