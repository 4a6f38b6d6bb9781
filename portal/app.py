"""The portal as a Flask app: the lock, the pages, the REST API and the dashboards in one."""

from datetime import timedelta

from flask import Flask

from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.settings import ServerSettings, secret_key
from dash_app.app import create_dashboards
from portal.api.registry import install_api
from portal.auth import install_lock
from portal.context import Portal, current_scope, install
from portal.display import install_display
from portal.errors import install_error_handlers
from portal.pages import (
    alerts,
    appliances,
    health,
    home,
    jobs,
    receivers,
    reference,
    rules,
    session,
    tenants,
    users,
)
from portal.pages import (
    settings as settings_pages,
)
from portal.security import install_security
from portal.shell import render_shell
from timeseries.store import Store

PAGES = (
    home, session, health, reference, appliances, jobs, alerts, rules, receivers, settings_pages,
    users, tenants,
)  # fmt: skip
MAX_BODY_BYTES = 4 * 1024 * 1024


def create_portal(
    settings: ServerSettings, *, sessions: SessionFactory, store: Store, clock: Clock = utc_now
) -> Flask:
    """Return the portal; the caller owns the database and the store and closes them."""
    app = Flask("portal")
    app.config.update(_flask_config(settings))
    install(app, Portal(settings=settings, sessions=sessions, store=store, clock=clock))
    install_lock(app)
    install_security(app)
    install_error_handlers(app)
    install_display(app)
    install_api(app)
    for module in PAGES:
        app.register_blueprint(module.pages)
    create_dashboards(
        app,
        sessions=sessions,
        store=store,
        scope_provider=current_scope,
        render_shell=render_shell,
        clock=clock,
    )
    return app


def _flask_config(settings: ServerSettings) -> dict[str, object]:
    return {
        "SECRET_KEY": secret_key(settings),
        "SESSION_COOKIE_NAME": "vedette",
        "SESSION_COOKIE_HTTPONLY": True,
        "SESSION_COOKIE_SAMESITE": "Lax",
        "SESSION_COOKIE_SECURE": settings.resolved_public_url.startswith("https:"),
        "PERMANENT_SESSION_LIFETIME": timedelta(seconds=settings.session_lifetime_seconds),
        "MAX_CONTENT_LENGTH": MAX_BODY_BYTES,
        # The token lives as long as the session: a dashboard may stay open for days.
        "WTF_CSRF_TIME_LIMIT": None,
    }
