"""The portal as one Flask app: authentication, pages, REST API and dashboards."""

from datetime import timedelta
from typing import Any

from flask import Blueprint, Flask, request
from flask.json.provider import DefaultJSONProvider

import portal.pages
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.settings import ServerSettings, secret_key
from core.shared_limits import SharedLimits
from core.strict_json import decode_json
from dash_app.lazy import LazyDashboards
from portal.api.public import public_address
from portal.api.registry import install_api
from portal.auth.guard import install_authentication, install_support_sessions
from portal.auth.oidc import install_oidc
from portal.blueprints import blueprints_of
from portal.context import current_scope, install, portal_of, principal
from portal.downloads import install_downloads
from portal.middleware.errors import install_error_handlers
from portal.middleware.parameters import install_parameters
from portal.middleware.ratelimits import install_rate_limit
from portal.middleware.security import allow_inline_scripts, install_security, session_cookie_name
from portal.middleware.static_files import install_static_files
from portal.presenters.display import install_display
from portal.shell import render_shell
from portal.time_zone import current_zone_name
from tenants.users.sightings import Sightings
from timeseries.store import Store

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_FORM_FIELD_BYTES = 512 * 1024
MAX_FORM_PARTS = 1000


class StrictJSONProvider(DefaultJSONProvider):
    """Decodes JSON strictly, in requests of the dashboards as well."""

    def loads(self, s: str | bytes, **_options: Any) -> Any:  # noqa: ANN401 - Flask's
        """Return the decoded JSON."""
        return decode_json(s.encode("utf-8", "surrogatepass") if isinstance(s, str) else s)


def create_portal(
    settings: ServerSettings,
    *,
    sessions: SessionFactory,
    store: Store,
    clock: Clock = utc_now,
    sightings: Sightings | None = None,
    limits: SharedLimits | None = None,
) -> Flask:
    """Return the portal; the caller owns the database and the store, and closes them.

    The caller also writes the `sightings`, and exchanges the `limits`, in the background.
    """
    app = Flask("portal")
    app.json = StrictJSONProvider(app)
    app.config.update(_flask_config(settings))
    parts = portal_of(settings, sessions=sessions, store=store, clock=clock, sightings=sightings)
    install(app, parts)
    limits = limits or SharedLimits()
    install_rate_limit(app, "address", lambda: request.remote_addr, limits)
    install_rate_limit(app, "address", public_address, limits, of="public")
    install_downloads(app)
    install_authentication(app)
    install_rate_limit(app, "user", _user_id, limits)
    install_support_sessions(app)
    install_security(app)
    install_parameters(app)
    install_static_files(app)
    install_error_handlers(app)
    install_display(app)
    install_oidc(app, parts)
    install_api(app)
    for pages in blueprints_of(portal.pages, Blueprint):
        app.register_blueprint(pages)

    def load_dashboards(server: Flask) -> None:
        from dash_app.app import create_dashboards  # noqa: PLC0415 - see `dash_app.lazy`

        dash = create_dashboards(
            server,
            sessions=sessions,
            store=store,
            scope_provider=current_scope,
            zone_provider=current_zone_name,
            render_shell=render_shell,
            clock=clock,
        )
        allow_inline_scripts(app, dash.csp_hashes())

    LazyDashboards(load_dashboards).install(app)
    return app


def _user_id() -> str | None:
    current = principal()
    return None if current is None else current.user.id


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
        # The token is valid as long as the session: a dashboard may stay open for days.
        "WTF_CSRF_TIME_LIMIT": None,
    }
