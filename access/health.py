"""GET /health: whether this process could serve an agent now."""

from anyio import to_thread
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from access.database import Database
from timeseries.store import Store


class HealthEndpoint:
    """Asks the database and the store; a fault of either is answered as 503."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    async def health(self, _request: Request) -> Response:
        """Answer `{"status": "ok"}` when both answer."""
        await self._database.run(lambda session: session.execute(text("SELECT 1")))
        # An unknown measurement is the cheapest question.
        await to_thread.run_sync(lambda: self._store.fields("", tenants=None))
        return JSONResponse({"status": "ok"})
