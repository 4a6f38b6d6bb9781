"""`vedette server`: portal, access and scheduler in one process: the embedded cloud side."""

import gc
import logging
import socket
import sys
from typing import Any

import click
import uvicorn

from cli.ca import write_authorities
from cli.composition import Cloud, create_asgi_app, open_cloud
from cli.parentage import stop_with_parent
from cli.scheduler import Scheduler
from cli.tls import ServerTLS, TLSProtocol
from core.db import transaction
from core.errors import ConfigurationError
from core.logs import configure_logging
from core.settings import ServerSettings, load_server_settings

log = logging.getLogger(__name__)

# Who waits for the interpreter asks for it after so long. With the usual 5 ms each call of the
# event loop into the system may cost as much while other threads compute.
SWITCH_SECONDS = 0.0005
# Agents post every ten seconds; what they sent waits for no handshake.
KEEP_ALIVE_SECONDS = 75
# Long polls and tunnels are cut after this when the server is asked to stop.
SHUTDOWN_SECONDS = 2
# Batches hold thousands of small objects and no cycles: looking at them that often is in vain.
GC_THRESHOLDS = (20_000, 20, 20)


@click.command()
def server() -> None:
    """Run portal, access and scheduler in one process.

    Settings come from VEDETTE_* variables and from the file named by VEDETTE_CONFIG.
    """
    settings = load_server_settings()
    configure_logging(settings.log_level, process="server")
    stop_with_parent()
    check_port(settings.host, settings.port)
    run_server(settings)


def run_server(settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM, then stop the loops and close database and store."""
    with open_cloud(settings) as cloud:
        scheduler = Scheduler(cloud)
        config = uvicorn.Config(
            create_asgi_app(cloud),
            host=settings.host,
            port=settings.port,
            lifespan="off",
            proxy_headers=False,  # the app believes those of the settings alone
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            **_tls_options(cloud),
        )
        _spare_gc_the_program()
        sys.setswitchinterval(SWITCH_SECONDS)
        scheduler.start()
        try:
            log.info("serving %s", settings.resolved_public_url)
            uvicorn.Server(config).run()
        finally:
            scheduler.stop()


def _tls_options(cloud: Cloud) -> dict[str, Any]:
    """Return what makes uvicorn end TLS, where the settings name a certificate."""
    if cloud.settings.tls_certificate_file is None:
        return {}
    with transaction(cloud.sessions) as session:
        authorities = write_authorities(session, cloud.settings)
    tls = ServerTLS.of(cloud.settings, authorities)
    return {"ssl_context_factory": lambda _config, _default: tls.context, "http": TLSProtocol}


def _spare_gc_the_program() -> None:
    """Keep the collector away from what was loaded at the start and stays until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def check_port(host: str, port: int) -> None:
    """Say in one line that a port can't be had, before anything else is started.

    Raises:
        ConfigurationError: names the port, why it can't be had, and how to choose another.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            fault = (
                f"port {port} on {host} can't be used ({error.strerror}); "
                "choose another with PORT=... (make) or VEDETTE_PORT=..."
            )
            raise ConfigurationError([fault], source="The configuration") from error
