"""Builds what fetches datasets on this appliance."""

from collections.abc import Callable

from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.datasets.cache import Cache
from collector.datasets.peers import PeerTLS
from collector.datasets.stager import Stager, can_stage
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts
from core.clock import Clock, to_ns

CACHE_NAME = "datasets"


def build_stager(
    config: AgentConfig,
    identity: Identity | None,
    *,
    connect: Callable[[Identity], PortalConnection],
    tls: TLSContexts,
    clock: Clock,
) -> Stager | None:
    """Return the stager; None without a portal, executor or the extra `data`."""
    settings = config.datasets
    if identity is None or config.executor == "none" or not can_stage(settings):
        return None
    cache = Cache(
        settings.cache_dir or config.data_dir / CACHE_NAME,
        max_bytes=settings.cache_max_bytes,
        min_free_bytes=settings.min_free_bytes,
        now_ns=lambda: to_ns(clock()),
    )
    return Stager(
        settings,
        cache,
        connect=lambda: connect(identity),
        identity=identity,
        peer_tls=PeerTLS(config.data_dir, identity) if settings.peer_listen else None,
        tls=tls,
    )
