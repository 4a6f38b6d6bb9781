"""The audit log: who did what to what, when and from where.

Whoever opens a session says who acts on it, by `set_actor` or a factory from `acting`. From then
on every change of a row whose model declares how it is `audited` is noticed by itself; `record`
tells of what is no change of such a row (sign-ins, exports, visits, Core updates), or names a
change better than the row alone can, and is then joined with what was noticed. All is written at
the end of the transaction, and goes with it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from core.clock import Clock
from core.db import SessionFactory
from tenants.auditing.changes import install
from tenants.auditing.drafts import NOBODY, Actor, Draft, actor_info, actor_of, drafts_of
from tenants.auditing.places import person_chains
from tenants.models import PLATFORM_CHAIN

__all__ = ["Actor", "acting", "person_chains", "record", "set_actor"]


def set_actor(session: Session, actor: Actor, *, clock: Clock) -> None:
    """Say who acts on a session from now on, by whose clock."""
    install()
    session.info.update(actor_info(actor, clock))


def acting(sessions: SessionFactory, actor: Actor, *, clock: Clock) -> SessionFactory:
    """Return a factory of the same sessions, on each of which this actor acts."""
    install()
    options = dict(sessions.kw)
    options["info"] = {**(options.get("info") or {}), **actor_info(actor, clock)}
    return sessionmaker(**options)


def record(
    session: Session,
    *,
    action: str,
    target_kind: str,
    target_id: str | None,
    target_name: str,
    tenant_id: str | None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    now: datetime,
) -> None:
    """Tell of something that was done.

    Args:
        session: the session on which it was done; the entry is written when it commits.
        action: `<kind>.<verb>`, such as `session.started` or `membership.role_changed`.
        target_kind: what it was done to.
        target_id: which one.
        target_name: what people know it by.
        tenant_id: whose log tells of it; None is the platform's.
        before: values that were, by name; never a secret.
        after: values that are, likewise.
        reason: why, where somebody was asked.
        now: the present instant.
    """
    install()
    drafts_of(session).append(
        Draft(
            chain=tenant_id or PLATFORM_CHAIN,
            at=now,
            actor=actor_of(session) or NOBODY,
            action=action,
            target_kind=target_kind,
            target_id=target_id,
            target_name=target_name,
            before=before,
            after=after,
            reason=reason,
        )
    )
