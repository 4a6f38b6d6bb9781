"""The portal as a Flask app: the lock, the pages, the REST API and the dashboards in one."""

from datetime import timedelta

from flask import Flask

from alerting.addresses import AddressPolicy
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings, secret_key
from dash_app.app import create_dashboards
from dash_app.minute import MinuteCache
from portal.answering.errors import install_error_handlers
from portal.answering.ratelimits import install_address_limit, install_user_limit
from portal.answering.security import allow_inline_scripts, install_security, session_cookie_name
from portal.api.registry import install_api
from portal.context import Portal, current_scope, install
from portal.door.auth import install_lock
from portal.door.oidc import install_oidc
from portal.door.visits import install_visits
from portal.pages import (
    alerts,
    appliance_bulk,
    appliances,
    audit,
    certificates,
    console,
    enrolment,
    health,
    home,
    housekeeping,
    invitations,
    jobs,
    oidc,
    password,
    receivers,
    reference,
    rules,
    second_factor,
    session,
    support,
    tenants,
    usage,
    users,
)
from portal.pages import (
    settings as settings_pages,
)
from portal.shell import render_shell
from portal.showing.display import install_display
from timeseries.store import Store

PAGES = (
    home, session, password, invitations, second_factor, oidc, health, reference, enrolment,
    certificates, appliance_bulk, appliances, jobs, alerts, rules,
    receivers, settings_pages, users, tenants, audit, support, console, housekeeping, usage,
)  # fmt: skip
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_FORM_FIELD_BYTES = 512 * 1024
MAX_FORM_PARTS = 1000


def create_portal(
    settings: ServerSettings, *, sessions: SessionFactory, store: Store, clock: Clock = utc_now
) -> Flask:
    """Return the portal; the caller owns the database and the store and closes them."""
    app = Flask("portal")
    app.config.update(_flask_config(settings))
    parts = Portal(
        settings=settings, sessions=sessions, store=store, clock=clock,
        secrets=SecretBox.of(settings), minute=MinuteCache(clock),
        webhook_policy=AddressPolicy(allowed=settings.webhook_networks),
    )  # fmt: skip
    install(app, parts)
    install_address_limit(app)
    install_lock(app)
    install_user_limit(app)
    install_visits(app)
    install_security(app)
    install_error_handlers(app)
    install_display(app)
    install_oidc(app, parts)
    install_api(app)
    for module in PAGES:
        app.register_blueprint(module.pages)
    dashboards = create_dashboards(
        app,
        sessions=sessions,
        store=store,
        scope_provider=current_scope,
        render_shell=render_shell,
        clock=clock,
    )
    allow_inline_scripts(app, dashboards.csp_hashes())
    return app


def _flask_config(settings: ServerSettings) -> dict[str, object]:
    return {
        "SECRET_KEY": secret_key(settings),
        "SESSION_COOKIE_NAME": session_cookie_name(settings),
        "SESSION_COOKIE_HTTPONLY": True,
        "SESSION_COOKIE_SAMESITE": "Lax",
        "SESSION_COOKIE_SECURE": settings.resolved_public_url.startswith("https:"),
        "PERMANENT_SESSION_LIFETIME": timedelta(seconds=settings.session_lifetime_seconds),
        "MAX_CONTENT_LENGTH": MAX_BODY_BYTES,
        "MAX_FORM_MEMORY_SIZE": MAX_FORM_FIELD_BYTES,
        "MAX_FORM_PARTS": MAX_FORM_PARTS,
        # The token lives as long as the session: a dashboard may stay open for days.
        "WTF_CSRF_TIME_LIMIT": None,
    }
