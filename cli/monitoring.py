"""`/healthz`, `/readyz` and `/metrics` of a server: which checks it makes."""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import Info
from starlette.applications import Starlette
from starlette.types import Scope

from access.probes import probe_store
from cli.backend import Backend
from cli.keys import check_keys
from core.clock import Clock
from serving.database_metrics import database_registry
from serving.monitoring import create_monitoring_app
from serving.probes import (
    probe_broker,
    probe_certificates,
    probe_damage,
    probe_database,
    probe_disk,
    probe_lease,
    probe_shutdown,
)
from serving.readiness import Readiness
from tenants.permissions import Permission
from tenants.principals import Principal
from timeseries.store_url import parse_store_url

BUILD = Info("vedette_build", "The version that runs.")
BUILD.info({"version": version("vedette")})


def monitoring_app(
    backend: Backend, *, identify: Callable[[Scope], Principal | None], clock: Clock
) -> Starlette:
    """Return the application; `identify` returns the user of a request."""
    settings, sessions = backend.settings, backend.sessions

    def is_operator(scope: Scope) -> bool:
        principal = identify(scope)
        return principal is not None and principal.scope.allows(Permission.OPERATE)

    store_file = parse_store_url(settings.resolved_timeseries_url).file
    folders = {settings.data_dir} | ({store_file.parent} if store_file is not None else set())
    required = {
        "shutdown": lambda: probe_shutdown(backend.draining),
        "database": lambda: probe_database(sessions, now=clock()),
        "store": lambda: probe_store(backend.store),
        "disk": lambda: probe_disk(*folders),
        "keys": lambda: check_keys(sessions, settings),
    }
    watched = {
        "broker": lambda: probe_broker(backend.broker),
        "samples": lambda: probe_damage(backend.store),
        "scheduler": lambda: probe_lease(sessions, now=clock()),
        "certificates": lambda: probe_certificates(
            sessions, settings.tls_certificate_file, now=clock()
        ),
    }
    return create_monitoring_app(
        settings,
        Readiness(required, watched),
        registry=database_registry(
            sessions,
            clock=clock,
            backup_interval_seconds=settings.backup_interval_seconds if settings.backup_url else 0,
        ),
        is_operator=is_operator,
    )
