"""Where a row's entries go, and what it is called there."""

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from tenants.models import PLATFORM_CHAIN, Membership, Tenant, User
from tenants.models.audited import Audited


def chains_of(session: Session, row: object) -> list[str]:
    """Return the chains that tell of a row.

    A tenant itself is told of in its own and in the platform's, which so knows what chains there
    should be. Of a person tell those of all their tenants.
    """
    if isinstance(row, Tenant):
        return [row.id, PLATFORM_CHAIN]
    if isinstance(row, User):
        return person_chains(session, row.id)
    tenant_id: str | None = getattr(row, "tenant_id", None)
    if tenant_id is None and not hasattr(row, "tenant_id") and hasattr(row, "user_id"):
        return person_chains(session, row.user_id)
    return [tenant_id or PLATFORM_CHAIN]


def person_chains(session: Session, user_id: str) -> list[str]:
    """Return the chains that tell of a person: of each of their tenants, else the platform's."""
    with session.no_autoflush:
        found = session.scalars(select(Membership.tenant_id).where(Membership.user_id == user_id))
        return sorted(set(found)) or [PLATFORM_CHAIN]


def name_of(session: Session, row: object, audited: Audited) -> str:
    """Return what people know a row by; `user.email` is of the row that `user` refers to."""
    first, _, rest = audited.name.partition(".")
    value = _referred(session, row, first, rest) if rest else getattr(row, first)
    return "" if value is None else str(value)


def _referred(session: Session, row: object, relation: str, name: str) -> object | None:
    """Return a value of what a row refers to.

    Nothing is loaded as an object: in the middle of a flush that would find rows for which the
    session has objects already, without knowing so.
    """
    found = inspect(row).dict.get(relation)
    if found is not None:
        value: object = getattr(found, name)
        return value
    mapper = inspect(type(row))
    relationship = mapper.relationships[relation]
    local, remote = (relationship.local_remote_pairs or [])[0]
    key = getattr(row, mapper.get_property_by_column(local).key)
    column = relationship.mapper.columns[name]
    with session.no_autoflush:
        return session.scalar(select(column).where(remote == key))
