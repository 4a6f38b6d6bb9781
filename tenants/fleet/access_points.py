"""Access points: the addresses at which agents reach the portal, as operators configure them.

A *direct* one is a process of the portal, or several behind a load balancer. A *relay* has no
database; it authenticates at the portal by a token, and reports how it is doing. An access point is
for the appliances of all tenants, or of one.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Unpack
from urllib.parse import urlsplit

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from protocol.access_points import MAX_ACCESS_POINTS, MAX_WEIGHT, AccessPointAddress
from tenants.checks import raise_if_invalid
from tenants.fleet.agents import refresh_registry
from tenants.models import AccessPoint, Appliance, ApplianceState, Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

RELAY_PREFIX = "vdr"
MAX_NAME_LENGTH = 100
MAX_REGION_LENGTH = 100
MAX_URL_LENGTH = 255
# Three reports that are missing, and some time for a busy database.
SILENT_AFTER = timedelta(seconds=40)
ACCESS_POINT_SORTS: Columns = {
    "name": AccessPoint.name,
    "region": AccessPoint.region,
    "weight": AccessPoint.weight,
    "created_at": AccessPoint.created_at,
}
SPOOL_WARNING_RATIO = 0.8
# The list of an agent has the portal's public URL, too.
MAX_CONFIGURED = MAX_ACCESS_POINTS - 1
_PORTS = {"http": 80, "https": 443}
# Of names in the DNS.
_MAX_HOST_LENGTH, _MAX_LABEL_LENGTH = 253, 63


class AccessPointKind(StrEnum):
    """What answers at an access point."""

    DIRECT = "direct"
    RELAY = "relay"


class AccessPointState(StrEnum):
    """Whether a relay reports; a direct access point is known by its agents only."""

    ANSWERING = "answering"
    SILENT = "silent"
    NEVER_SEEN = "never_seen"
    IN_USE = "in_use"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPointRequest:
    """An access point as an operator writes it; `kind` can't be changed later."""

    name: str
    url: str
    kind: AccessPointKind = AccessPointKind.DIRECT
    region: str = ""
    weight: int = 100
    tenant_id: str | None = None


@dataclass(frozen=True, slots=True)
class ListedAccessPoint:
    """An access point as operators see it.

    Attributes:
        point: its row.
        state: at the time of the list.
        agents: that use it now; of a relay as it reports.
        secret: the token of a relay, right after it was made.
    """

    point: AccessPoint
    state: AccessPointState
    agents: int
    secret: str = ""

    @property
    def kind(self) -> AccessPointKind:
        """What answers there."""
        return AccessPointKind.RELAY if self.point.is_relay else AccessPointKind.DIRECT


def list_access_points(
    session: Session, scope: Scope, *, now: datetime, **paging: Unpack[Paging]
) -> Page[ListedAccessPoint]:
    """Return a page of the access points, by name unless sorted otherwise, for operators."""
    scope.require(Permission.OPERATE)
    page = list_page(
        session,
        select(AccessPoint).order_by(AccessPoint.name, AccessPoint.id),
        ACCESS_POINT_SORTS,
        last=AccessPoint.id,
        **paging,
    )
    agents = _agents_by_url(session, [point.url for point in page.items if not point.is_relay])
    return page.of([_listed(point, agents, now=now) for point in page.items])


def get_access_point(
    session: Session, scope: Scope, access_point_id: str, *, now: datetime
) -> ListedAccessPoint:
    """Return an access point, for operators."""
    point = _get(session, scope, access_point_id)
    return _listed(point, _agents_by_url(session, [point.url]), now=now)


def create_access_point(
    session: Session, scope: Scope, request: AccessPointRequest, *, public_url: str, now: datetime
) -> ListedAccessPoint:
    """Add an access point; agents learn of it with their next heartbeats.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: name or URL are in use, or an appliance would have too many.
    """
    scope.require(Permission.OPERATE)
    request = _checked(session, request, public_url=public_url)
    _check_count(session, request.tenant_id)
    is_relay = request.kind is AccessPointKind.RELAY
    secret = new_secret(RELAY_PREFIX) if is_relay else ""
    point = AccessPoint(created_at=now, secret_hash=hash_secret(secret) if secret else None)
    _fill(point, request)
    _flush(session, point)
    if is_relay:
        refresh_registry(session)
    return replace(get_access_point(session, scope, point.id, now=now), secret=secret)


def change_access_point(
    session: Session,
    scope: Scope,
    access_point_id: str,
    changes: Mapping[str, Any],
    *,
    public_url: str,
    now: datetime,
) -> ListedAccessPoint:
    """Change fields of an access point: all of a request but `kind`.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: name or URL are in use, or an appliance would have too many.
    """
    point = _get(session, scope, access_point_id)
    current = {name: getattr(point, name) for name in _CHANGEABLE}
    request = AccessPointRequest(**{**current, **changes})
    request = _checked(session, request, public_url=public_url)
    if request.tenant_id != point.tenant_id:
        _check_count(session, request.tenant_id, leaving=point.id)
    _fill(point, request)
    _flush(session, point)
    if point.is_relay:
        # It may act for another tenant now.
        refresh_registry(session)
    return get_access_point(session, scope, point.id, now=now)


def renew_relay_token(
    session: Session, scope: Scope, access_point_id: str, *, now: datetime
) -> ListedAccessPoint:
    """Give a relay a new token; the old one is refused at once.

    Raises:
        ConflictError: it is no relay.
    """
    point = _get(session, scope, access_point_id)
    if not point.is_relay:
        raise ConflictError(
            f"The access point {point.name!r} is no relay, so it needs no token.", code="no_relay"
        )
    secret = new_secret(RELAY_PREFIX)
    point.secret_hash = hash_secret(secret)
    refresh_registry(session)
    return replace(get_access_point(session, scope, point.id, now=now), secret=secret)


def delete_access_point(session: Session, scope: Scope, access_point_id: str) -> None:
    """Remove an access point: agents leave it, and the token of a relay is refused at once."""
    session.delete(_get(session, scope, access_point_id))
    refresh_registry(session)


def read_addresses(session: Session) -> list[tuple[str | None, AccessPointAddress]]:
    """Return the addresses for agents, each with its tenant, None for all."""
    rows = session.execute(select(AccessPoint.tenant_id, AccessPoint.url, AccessPoint.weight))
    return [
        (tenant_id, AccessPointAddress(url=url, weight=weight)) for tenant_id, url, weight in rows
    ]


def access_point_problems(session: Session, *, now: datetime) -> list[str]:
    """Return what operators should look at: silent relays, and spools that fill up or refuse."""
    relays = select(AccessPoint).where(AccessPoint.secret_hash.is_not(None))
    return [
        problem
        for point in session.scalars(relays.order_by(AccessPoint.name))
        for problem in relay_problems(point, now=now)
    ]


def relay_problems(point: AccessPoint, *, now: datetime) -> list[str]:
    """Return what is wrong with a relay, as sentences."""
    if point.seen_at is None:
        return []
    problems = []
    if now - point.seen_at > SILENT_AFTER:
        problems.append(
            f"The relay {point.name} is silent. Check that it runs and reaches the portal."
        )
    if point.spool_bytes > SPOOL_WARNING_RATIO * point.max_spool_bytes:
        problems.append(
            f"The spool of the relay {point.name} is almost full. When it is, the relay refuses "
            "samples, and agents keep them."
        )
    if point.undeliverable_bytes:
        problems.append(
            f"The relay {point.name} has samples that the portal did not store. They are in "
            "undeliverable.log on its disk, with the reasons."
        )
    return problems


def normalized_url(text: str) -> str | None:
    """Return the URL of an access point in the form in which it is compared; None if it is none.

    It has scheme, host and perhaps a port, and nothing else.
    """
    text = text.strip()
    if len(text) > MAX_URL_LENGTH or not text.isascii() or not text.isprintable():
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    is_plain = not (parts.path.strip("/") or "?" in text or "#" in text or "@" in text)
    if parts.scheme not in _PORTS or not is_plain or not _is_host(host) or port == 0:
        return None
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port in {None, _PORTS[parts.scheme]} else f":{port}"
    return f"{parts.scheme}://{shown_host}{shown_port}"


_CHANGEABLE = ("name", "url", "region", "weight", "tenant_id")


def _get(session: Session, scope: Scope, access_point_id: str) -> AccessPoint:
    scope.require(Permission.OPERATE)
    point = session.get(AccessPoint, access_point_id)
    if point is None:
        raise NotFoundError.of("access point", access_point_id)
    return point


def _listed(
    point: AccessPoint, agents_by_url: Mapping[str, int], *, now: datetime
) -> ListedAccessPoint:
    if not point.is_relay:
        agents = agents_by_url.get(point.url, 0)
        state = AccessPointState.IN_USE if agents else AccessPointState.UNUSED
        return ListedAccessPoint(point, state, agents)
    if point.seen_at is None:
        return ListedAccessPoint(point, AccessPointState.NEVER_SEEN, 0)
    if now - point.seen_at > SILENT_AFTER:
        return ListedAccessPoint(point, AccessPointState.SILENT, 0)
    return ListedAccessPoint(point, AccessPointState.ANSWERING, point.agents)


def _agents_by_url(session: Session, urls: list[str]) -> dict[str, int]:
    if not urls:
        return {}
    statement = (
        select(Appliance.access_point, func.count())
        .where(Appliance.access_point.in_(urls), Appliance.state == ApplianceState.ONLINE)
        .group_by(Appliance.access_point)
    )
    return dict(session.execute(statement).all())


def _checked(
    session: Session, request: AccessPointRequest, *, public_url: str
) -> AccessPointRequest:
    """Return a request with its texts as they are stored."""
    name, region = request.name.strip(), request.region.strip()
    url = normalized_url(request.url)
    errors: dict[str, list[str]] = {}
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        errors["name"] = [f"The name must have 1 to {MAX_NAME_LENGTH} printable characters."]
    if len(region) > MAX_REGION_LENGTH or not region.isprintable():
        errors["region"] = [f"The region must have at most {MAX_REGION_LENGTH} characters."]
    if not 0 <= request.weight <= MAX_WEIGHT:
        errors["weight"] = [f"The weight is {request.weight}; choose 0 to {MAX_WEIGHT}."]
    if request.tenant_id is not None and session.get(Tenant, request.tenant_id) is None:
        errors["tenant_id"] = [f"There is no tenant {request.tenant_id[:50]!r}."]
    if url is None:
        problem = f"{request.url[:100]!r} is not an address of an access point. Write it like"
        errors["url"] = [f"{problem} https://fra.portal.example.com: without path and user."]
    elif url.startswith("http:") and public_url.startswith("https:"):
        errors["url"] = [
            f"{url} is not encrypted, and agents refuse a list with it. Begin it with https://."
        ]
    raise_if_invalid(errors, "The access point is invalid")
    assert url is not None  # noqa: S101 - an error above
    return replace(request, name=name, region=region, url=url)


def _check_count(session: Session, tenant_id: str | None, *, leaving: str = "") -> None:
    """Refuse more access points than the list of an agent may have."""
    statement = (
        select(AccessPoint.tenant_id, func.count())
        .where(AccessPoint.id != leaving)
        .group_by(AccessPoint.tenant_id)
    )
    counts = dict(session.execute(statement).all())
    shared = counts.pop(None, 0)
    of_tenant = max(counts.values(), default=0) if tenant_id is None else counts.get(tenant_id, 0)
    if shared + of_tenant >= MAX_CONFIGURED:
        raise ConflictError(
            f"An appliance can have {MAX_CONFIGURED} access points. Remove one first.",
            code="too_many",
        )


def _fill(point: AccessPoint, request: AccessPointRequest) -> None:
    for name in _CHANGEABLE:
        setattr(point, name, getattr(request, name))


def _flush(session: Session, point: AccessPoint) -> None:
    """Write a row; a concurrent request may have taken name or URL."""
    with session.no_autoflush:
        for name in ("name", "url"):
            column, value = getattr(AccessPoint, name), getattr(point, name)
            same = select(AccessPoint.id).where(column == value, AccessPoint.id != point.id)
            if session.scalar(same.limit(1)) is not None:
                raise _taken(name, value)
    try:
        with session.begin_nested():
            session.add(point)
    except IntegrityError as error:
        raise _taken("name", point.name) from error


def _taken(field: str, value: str) -> InvalidInputError:
    noun = "name" if field == "name" else "address"
    text = f"There is an access point with the {noun} {value}. Choose another."
    return InvalidInputError(text, errors={field: [text]})


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            # A zone is of one host only.
            return ipaddress.IPv6Address(host).scope_id is None
        except ValueError:
            return False
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_HOST_LENGTH and all(
        0 < len(label) <= _MAX_LABEL_LENGTH and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    )
