"""The agents' door as an ASGI application: ingest gateway and desired state."""

from starlette.applications import Starlette
from starlette.routing import Route

from access.agents import AgentEndpoints
from access.auth import Authenticator
from access.database import Database
from access.errors import HANDLERS
from access.health import HealthEndpoint
from access.longpoll import GenerationWatch, generation_reader
from access.transfer import TransferEndpoints
from access.write import WriteEndpoint
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.settings import ServerSettings
from timeseries.store import Store


def create_access_app(
    *, settings: ServerSettings, sessions: SessionFactory, store: Store, clock: Clock = utc_now
) -> Starlette:
    """Return the application; it needs no lifespan and can stand behind another one."""
    database = Database(sessions)
    authenticator = Authenticator(database, clock=clock)
    watch = GenerationWatch(generation_reader(database))
    agents = AgentEndpoints(authenticator, database, watch, clock=clock)
    gateway = WriteEndpoint(
        authenticator, store, clock=clock, max_body_bytes=settings.max_body_bytes
    )
    health = HealthEndpoint(database, store)
    transfer = TransferEndpoints(authenticator)
    app = Starlette(
        routes=[
            Route("/health", health.health, methods=["GET"]),
            Route("/api/v2/write", gateway.write, methods=["POST"]),
            Route("/agent/v1/enroll", agents.enroll, methods=["POST"]),
            Route("/agent/v1/heartbeat", agents.heartbeat, methods=["POST"]),
            Route("/agent/v1/desired", agents.desired, methods=["GET"]),
            Route("/agent/v1/observed", agents.observed, methods=["POST"]),
            Route("/agent/v1/attempts/{attempt_id}/log", agents.log, methods=["POST"]),
            Route("/agent/v1/transfer", transfer.download, methods=["GET"]),
            Route("/agent/v1/transfer", transfer.upload, methods=["POST"]),
        ],
        exception_handlers=HANDLERS,
    )
    app.state.watch = watch
    return app
