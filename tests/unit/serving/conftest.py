"""The server of the commands' tests, on a free port."""

from tests.unit.cli.conftest import (
    serve,
    server_app,
    settings,
    shared_portal,
    shared_portals,
    url,
)

__all__ = ["serve", "server_app", "settings", "shared_portal", "shared_portals", "url"]
