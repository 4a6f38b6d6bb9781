"""What every request may reach: settings, database, store and clock, and who is asking."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from flask import Flask, current_app, g
from sqlalchemy.orm import Session

from alerting.addresses import AddressPolicy
from core.clock import Clock
from core.db import SessionFactory, transaction
from core.errors import UnauthenticatedError
from core.secretbox import SecretBox
from core.settings import ServerSettings
from dash_app.minute import MinuteCache
from portal.answering.etags import check_before_change
from portal.door.actors import actor_of
from tenants.audit import set_actor
from tenants.models import User
from tenants.scope import Scope
from tenants.visitors import Visitor
from timeseries.store import Store

EXTENSION = "vedette"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portal:
    """What the composition root gave to the portal."""

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    clock: Clock
    secrets: SecretBox
    minute: MinuteCache
    webhook_policy: AddressPolicy


def install(app: Flask, portal: Portal) -> None:
    """Make the parts reachable by `portal()` in every request of the app."""
    app.extensions[EXTENSION] = portal


def portal() -> Portal:
    """Return the parts of the running portal."""
    found: Portal = current_app.extensions[EXTENSION]
    return found


@contextmanager
def database() -> Iterator[Session]:
    """Open a session and a transaction for this request; the audit log knows who asks."""
    with transaction(portal().sessions) as session:
        set_actor(session, actor_of(visitor()), clock=portal().clock)
        check_before_change(session)
        yield session


def now() -> datetime:
    """Return the present instant by the portal's clock."""
    return portal().clock()


def public_url() -> str:
    """Return the address that users open, for links in messages."""
    return portal().settings.resolved_public_url


def visitor() -> Visitor | None:
    """Return who is asking, or None where nobody is signed in."""
    found: Visitor | None = g.get("visitor")
    return found


def current_visitor() -> Visitor:
    """Return who is asking; routes behind the login always have somebody."""
    found = visitor()
    if found is None:
        raise UnauthenticatedError("Sign in first.")
    return found


def current_user() -> User:
    """Return as whom the visitor acts."""
    return current_visitor().user


def current_scope() -> Scope:
    """Return what the one who asks may see and do."""
    return current_visitor().scope
