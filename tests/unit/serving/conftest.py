"""The server of the commands' tests, on a free port."""

from tests.unit.cli.conftest import (
    serve,
    server_app,
    servers_share_portal,
    settings,
    shared_portal,
    shared_portals,
    url,
)

__all__ = [
    "serve",
    "server_app",
    "servers_share_portal",
    "settings",
    "shared_portal",
    "shared_portals",
    "url",
]
