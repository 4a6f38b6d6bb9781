"""The context of a request: settings, database, store, clock, and the signed-in principal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
from typing import TypeVar

from flask import Flask, abort, current_app, g, has_request_context, request
from sqlalchemy.orm import Session

from alerting.notification.senders.webhooks import AddressPolicy
from core.clock import Clock
from core.db import SessionFactory, begin_writing, transaction
from core.errors import UnauthenticatedError
from core.rate_limits import ConcurrencyLimit
from core.secretbox import SecretBox
from core.settings import ServerSettings, secret_key
from core.turns import WRITER
from dash_app.context import MINUTE, SharedCache
from datasets.parts import PartStore
from jobqueue.images.registry import Registry
from jobqueue.images.tokens import RegistryTokens
from jobqueue.logs.log_files import LogFiles
from jobqueue.services.web_ui import Proofs
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.models import User
from tenants.principals import Principal
from tenants.scope import Scope
from tenants.users.sightings import Sightings
from timeseries.store import Store

T = TypeVar("T")

EXTENSION = "vedette"
# Of one tenant: each takes a thread of the portal and a core of the store.
MAX_CONCURRENT_QUERIES = 2
# Of results, by one tenant: each takes a thread and the memory of a part.
MAX_CONCURRENT_DOWNLOADS = 4
# In `flask.g`: called at the end of the transaction that makes a request's change.
TRANSACTION_HOOK = "transaction_hook"
TransactionHook = Callable[[Session], None]
ANONYMOUS = "nobody signed in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portal:
    """The services that the composition root passes to the portal."""

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    clock: Clock
    secrets: SecretBox
    minute: SharedCache
    webhook_policy: AddressPolicy
    queries: ConcurrencyLimit
    downloads: ConcurrencyLimit
    parts: Callable[[], PartStore]
    log_files: LogFiles
    registry_tokens: RegistryTokens
    registry: Registry
    job_proofs: Proofs
    sightings: Sightings


def portal_of(
    settings: ServerSettings,
    *,
    sessions: SessionFactory,
    store: Store,
    clock: Clock,
    sightings: Sightings | None = None,
) -> Portal:
    """Return the services for these settings, with the given database and store."""
    tokens = RegistryTokens(settings)
    return Portal(
        settings=settings,
        sessions=sessions,
        store=store,
        clock=clock,
        secrets=SecretBox.of(settings),
        minute=SharedCache(clock, ttl=MINUTE),
        webhook_policy=AddressPolicy(allowed=settings.webhook_networks),
        queries=ConcurrencyLimit(MAX_CONCURRENT_QUERIES),
        downloads=ConcurrencyLimit(MAX_CONCURRENT_DOWNLOADS),
        parts=cache(partial(PartStore, settings)),
        log_files=LogFiles(settings.resolved_log_url),
        registry_tokens=tokens,
        registry=Registry(settings, tokens, clock),
        job_proofs=Proofs(secret_key(settings)),
        sightings=sightings or Sightings(sessions),
    )


def install(app: Flask, portal: Portal) -> None:
    """Make the services available through `portal()` in every request of the app."""
    app.extensions[EXTENSION] = portal


def portal() -> Portal:
    """Return the services of the running portal."""
    services: Portal = current_app.extensions[EXTENSION]
    return services


@contextmanager
def database() -> Iterator[Session]:
    """Open a session and a transaction for this request, with its actor set for the audit log."""
    hook: TransactionHook | None = g.pop(TRANSACTION_HOOK, None)
    with reading() as session:
        yield session
        if hook is not None:
            # At the end: on SQLite, nobody else writes from here on.
            hook(session)


@contextmanager
def reading() -> Iterator[Session]:
    """Open a session like `database`, before the transaction that makes the request's change."""
    with transaction(portal().sessions) as session:
        set_actor(session, actor_of(principal()), clock=portal().clock)
        yield session


def in_parts(change: Callable[[Session], tuple[T, bool]]) -> T:
    """Make a change that is too long for one transaction in several short ones.

    Args:
        change: makes a part; returns its result, and whether nothing is left to do. What is left
            after an error or a crash is done by the same request, sent again.
    """
    hook: TransactionHook | None = g.pop(TRANSACTION_HOOK, None)
    while True:
        with reading() as session:
            begin_writing(session)
            result, is_done = change(session)
            if is_done and hook is not None:
                hook(session)
        if is_done:
            return result


def require_marketplace() -> None:
    """Answer 404, as for an unknown address, unless the marketplace is on."""
    if not portal().settings.marketplace:
        abort(HTTPStatus.NOT_FOUND)


def now() -> datetime:
    """Return the current time of the portal's clock."""
    return portal().clock()


def public_url() -> str:
    """Return the base URL of the portal, for links in messages."""
    return portal().settings.resolved_public_url


def mail_url() -> str:
    """Return the base URL for links in emails; "" if no mail server is configured."""
    return public_url() if portal().settings.smtp_url else ""


def set_principal(sender: Principal | None) -> None:
    """Set who sends this request."""
    g.principal = sender
    WRITER.set(sender.tenant.id if sender and sender.tenant else "")


def principal() -> Principal | None:
    """Return who sends this request, or None without authentication."""
    sender: Principal | None = g.get("principal")
    return sender


def current_principal() -> Principal:
    """Return who sends this request.

    Raises:
        UnauthenticatedError: nobody is signed in, which only public routes see.
    """
    sender = principal()
    if sender is None:
        raise UnauthenticatedError("Sign in first.")
    return sender


def current_user() -> User:
    """Return the current user; in a support session the user that the operator views as."""
    return current_principal().user


def current_scope() -> Scope:
    """Return the tenants and permissions of the current user."""
    return current_principal().scope


def actor_of(sender: Principal | None) -> Actor:
    """Return a principal as the audit log's actor; in a support session that is the operator."""
    if sender is None:
        return _actor(None, via="browser")
    if sender.support_session is not None:
        return _actor(
            sender.support_session.operator, via=f"support session as {sender.user.email}"
        )
    via = sender.via.value
    if sender.credential_name:
        via = f"{via} {sender.credential_name}"
    return _actor(sender.user, via=via)


def actor_signing_in(user: User, *, via: str = "browser") -> Actor:
    """Return a user as the actor of the request that signs them in."""
    return _actor(user, via=via)


def _actor(user: User | None, *, via: str) -> Actor:
    is_request = has_request_context()
    return Actor(
        user_id=None if user is None else user.id,
        name=ANONYMOUS if user is None else user.email,
        via=via,
        address=(request.remote_addr or "") if is_request else "",
        user_agent=request.user_agent.string if is_request else "",
    )
