"""Enrolment tokens: made by a tenant's admin, spent by agents, listed and revoked."""

from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret, new_secret
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.entry.agents import tenant_refusal
from tenants.models import Appliance, EnrolmentToken, Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

ENROLMENT_TOKEN_SORTS: Columns = {
    "name": EnrolmentToken.name,
    "site": EnrolmentToken.site,
    "created_at": EnrolmentToken.created_at,
    "expires_at": EnrolmentToken.expires_at,
    "uses_left": EnrolmentToken.uses_left,
}

ENROLMENT_PREFIX = "vde"
MAX_NAME_LENGTH = 100
MAX_USES = 10_000
MAX_LIFETIME = timedelta(days=366)


def create_enrolment_token(
    session: Session,
    scope: Scope,
    *,
    name: str = "",
    site: str = "",
    region: str = "",
    labels: dict[str, str] | None = None,
    uses: int = 1,
    lifetime: timedelta,
    now: datetime,
) -> tuple[EnrolmentToken, str]:
    """Make a token for `uses` appliances of the scope's tenant; return it with its secret.

    Args:
        session: the database session.
        scope: an admin of the tenant.
        name: by which people know the token.
        site: where the appliances stand; wins over what the agent says, as do the next two.
        region: the site's region.
        labels: free pairs for placement.
        uses: how many appliances may join with it.
        lifetime: how long it may be used.
        now: the present instant.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    errors = text_faults(name=name, site=site, region=region)
    if not 1 <= uses <= MAX_USES:
        errors["uses"] = [f"uses is {uses}; give 1 to {MAX_USES}."]
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        errors["lifetime"] = [
            f"The lifetime is {lifetime}; give a positive one of at most {MAX_LIFETIME.days} days."
        ]
    if errors:
        raise InvalidInputError("The enrolment token can't be made.", errors=errors)
    return _add(
        session,
        EnrolmentToken(
            tenant_id=tenant_id,
            name=name,
            site=site,
            region=region,
            labels=labels or {},
            uses=uses,
            uses_left=uses,
            created_by=scope.user_id or None,
            created_at=now,
            expires_at=now + lifetime,
        ),
    )


def create_token_for_appliance(
    session: Session, scope: Scope, appliance_id: str, *, lifetime: timedelta, now: datetime
) -> tuple[EnrolmentToken, str]:
    """Make a token with which an appliance that is known joins again, under a new identity.

    Raises:
        ConflictError: the appliance is out of service for good.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    if appliance.revoked_at is not None:
        raise ConflictError(
            f"The appliance {appliance.name!r} was revoked for good. Enrol its host as a new one."
        )
    return _add(
        session,
        EnrolmentToken(
            tenant_id=appliance.tenant_id,
            name=f"again: {appliance.name}"[:MAX_NAME_LENGTH],
            site=appliance.site,
            region=appliance.region,
            labels=appliance.labels,
            uses=1,
            uses_left=1,
            appliance_id=appliance.id,
            created_by=scope.user_id or None,
            created_at=now,
            expires_at=now + lifetime,
        ),
    )


def list_enrolment_tokens(
    session: Session,
    scope: Scope,
    *,
    usable_at: datetime | None = None,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[EnrolmentToken]:
    """Return the tenant's tokens, the newest first; with `usable_at` those of use at that time."""
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(EnrolmentToken), EnrolmentToken)
    if usable_at is not None:
        statement = statement.where(
            EnrolmentToken.uses_left > 0,
            EnrolmentToken.expires_at > usable_at,
            EnrolmentToken.revoked_at.is_(None),
        )
    newest_first = statement.order_by(EnrolmentToken.id.desc())
    return paginate(
        session,
        sorted_by(newest_first, sort, ENROLMENT_TOKEN_SORTS, last=EnrolmentToken.id),
        number=page,
        size=page_size,
    )


def get_enrolment_token(session: Session, scope: Scope, token_id: str) -> EnrolmentToken:
    """Return a token; another tenant's is as good as missing."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, EnrolmentToken, token_id, kind="enrolment token")


def revoke_enrolment_token(
    session: Session, scope: Scope, token_id: str, *, now: datetime
) -> EnrolmentToken:
    """Let no more appliances join with a token; those that did stay."""
    token = get_enrolment_token(session, scope, token_id)
    token.revoked_at = token.revoked_at or now
    session.flush()
    return token


def spend_token(session: Session, secret: str, *, now: datetime) -> EnrolmentToken:
    """Take one use of the token with this secret.

    Raises:
        UnauthenticatedError: it is unknown, expired, revoked or used up, or its tenant shut out.
    """
    # One guarded UPDATE: of two appliances that race for the last use, one gets it.
    spent = session.execute(
        update(EnrolmentToken)
        .where(
            EnrolmentToken.secret_hash == hash_secret(secret),
            EnrolmentToken.uses_left > 0,
            EnrolmentToken.expires_at > now,
            EnrolmentToken.revoked_at.is_(None),
        )
        .values(uses_left=EnrolmentToken.uses_left - 1)
    )
    if not spent.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        raise UnauthenticatedError(
            "This enrolment token is wrong, expired, revoked or used up. Ask an admin of the "
            "tenant for a new one."
        )
    token = session.scalars(
        select(EnrolmentToken).where(EnrolmentToken.secret_hash == hash_secret(secret)),
        execution_options={"populate_existing": True},
    ).one()
    refusal = tenant_refusal(session.get_one(Tenant, token.tenant_id))
    if refusal:
        raise UnauthenticatedError(refusal)
    return token


def text_faults(**texts: str) -> dict[str, list[str]]:
    """Return what is wrong with the length of texts, by the name of each."""
    return {
        field: [f"{field} has {len(text)} characters; use at most {MAX_NAME_LENGTH}."]
        for field, text in texts.items()
        if len(text) > MAX_NAME_LENGTH
    }


def _add(session: Session, token: EnrolmentToken) -> tuple[EnrolmentToken, str]:
    secret = new_secret(ENROLMENT_PREFIX)
    token.secret_hash = hash_secret(secret)
    session.add(token)
    session.flush()
    return token, secret
