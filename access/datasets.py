"""Manifests and parts of datasets and results, for agents and for clients that upload.

    GET  /agent/v1/datasets/VERSION/head, .../pages/SHA256   the manifest of a version
    PUT  /agent/v1/datasets/VERSION/pages/SHA256             a page of a source that the agent reads
    POST /agent/v1/datasets                                  what its cache has
    POST /agent/v1/datasets/VERSION/head                     its head: the version is ready
    GET, PUT /agent/v1/parts/SHA256                          a part of the agent's tenant; of a
                                                             customer's job with ?attempt=ID

Users upload and download below `/api/v1/dataset-versions/VERSION` in the same way.
"""

import re
from collections.abc import Callable
from datetime import datetime

import msgspec
from anyio import to_thread
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope as ASGIScope

from access.database import Database, agent_actor, user_actor
from access.errors import HANDLERS
from access.identity.agent_registry import Agent
from access.identity.auth import Authenticator
from access.ingest.body import decode_struct, read_body
from access.jobs.other_sites import refuse_other_sites
from access.part_transfers import NO_STORE_HEADERS, PartTransfers, digest_of
from core.clock import Clock
from core.errors import ConflictError, NotFoundError, UnauthenticatedError
from core.settings import ServerSettings
from datasets.catalog import get_upload, get_version
from datasets.copies import record_report
from datasets.manifests import announce, read_head
from datasets.models import DatasetVersion, VersionPart, VersionState
from datasets.parts import PartStore
from jobqueue.rentals import rented_data
from jobqueue.results.announcements import ATTEMPT_PARAMETER, tenant_of_part, tenant_of_results
from protocol.datasets import MAX_PAGE_BYTES, PART_BYTES, DatasetReport, IndexResult, ManifestHead
from tenants.principals import Principal, Via

MAX_HEAD_BYTES = 8 * 1024**2
MAX_REPORT_BYTES = 8 * 1024**2
_PATH = re.compile(r"/api/v1/dataset-versions/[^/]+/(parts/[^/]+|pages/[^/]+|head|archive)")

Identify = Callable[[ASGIScope], Principal | None]


class AgentDatasets:
    """The endpoints of agents: they read versions of their tenant, and write those they index."""

    def __init__(
        self,
        authenticator: Authenticator,
        database: Database,
        transfers: PartTransfers,
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._database = database
        self._transfers = transfers
        self._clock = clock

    async def report(self, request: Request) -> Response:
        """Store what the cache of the appliance has, and how far the index of versions is."""
        agent = await self._authenticator.agent(request)
        body = await read_body(request, max_bytes=MAX_REPORT_BYTES, tenant_id=agent.tenant_id)
        report = decode_struct(body, DatasetReport)
        now = self._clock()
        await self._database.run(
            lambda session: record_report(session, agent.appliance_id, report, now=now)
        )
        return Response(status_code=204)

    async def head(self, request: Request) -> Response:
        """Return the head of a version that is ready."""
        agent = await self._authenticator.agent(request)
        head = await self._database.run(
            lambda session: read_head(session, _version(session, request, agent))
        )
        return _json(head)

    async def page(self, request: Request) -> Response:
        """Return a page of a version, as it is stored."""
        agent = await self._authenticator.agent(request)
        sha256 = digest_of(request)

        def tenant_of(session: Session) -> str:
            version = _version(session, request, agent)
            if session.get(VersionPart, (version.id, sha256)) is None:
                raise NotFoundError.of("page", sha256)
            return version.tenant_id

        return await self._transfers.send(request, await self._database.run(tenant_of))

    async def part(self, request: Request) -> Response:
        """Return a part of the agent's tenant, or of what a customer's job reads there."""
        agent = await self._authenticator.agent(request)
        sha256 = digest_of(request)
        tenant_id = await self._database.run(
            lambda session: tenant_of_part(
                session, agent.appliance_id, agent.tenant_id, sha256, _attempt_of(request)
            )
        )
        return await self._transfers.send(request, tenant_id)

    async def put_part(self, request: Request) -> Response:
        """Store a part, as of a result."""
        agent = await self._authenticator.agent(request)
        tenant_id = await self._database.run(
            lambda session: tenant_of_results(
                session, agent.appliance_id, agent.tenant_id, _attempt_of(request)
            )
        )
        return await self._transfers.receive(request, tenant_id, max_bytes=PART_BYTES)

    async def put_page(self, request: Request) -> Response:
        """Store a page of a version that the agent indexes."""
        agent = await self._authenticator.agent(request)

        def require_own(session: Session, now: datetime) -> None:
            version = _indexed_version(session, request, agent)
            announce(session, version, {digest_of(request)}, now)

        return await self._transfers.receive(
            request, agent.tenant_id, max_bytes=MAX_PAGE_BYTES, before=require_own
        )

    async def put_head(self, request: Request) -> Response:
        """Make a version ready that the agent has indexed."""
        agent = await self._authenticator.agent(request)
        body = await read_body(request, max_bytes=MAX_HEAD_BYTES, tenant_id=agent.tenant_id)
        result = decode_struct(body, IndexResult)
        version = await self._database.run(
            lambda session: _indexed_version(session, request, agent, is_ready_fine=True)
        )
        await self._transfers.publish(version, result.head, agent_actor(request, agent.name))
        return Response(status_code=204)


class UserDatasets:
    """The endpoints of users and their clients: they upload versions, and download them."""

    def __init__(
        self, database: Database, transfers: PartTransfers, *, identify: Identify, is_https: bool
    ) -> None:
        self._database = database
        self._transfers = transfers
        self._identify = identify
        self._is_https = is_https

    async def part(self, request: Request) -> Response:
        """Return a part or page of a version."""
        principal, sha256 = await self._principal(request), digest_of(request)

        def tenant_of(session: Session) -> str:
            version = get_version(session, principal.scope, request.path_params["version_id"])
            if session.get(VersionPart, (version.id, sha256)) is None:
                raise NotFoundError.of("part", sha256)
            return version.tenant_id

        return await self._transfers.send(request, await self._database.run(tenant_of))

    async def put_part(self, request: Request) -> Response:
        """Store a part of a version that is uploaded."""
        return await self._receive(request, PART_BYTES)

    async def put_page(self, request: Request) -> Response:
        """Store a page of its manifest."""
        return await self._receive(request, MAX_PAGE_BYTES)

    async def head(self, request: Request) -> Response:
        """Return the head of a version's manifest."""
        principal = await self._principal(request)
        head = await self._database.run(
            lambda session: read_head(
                session, get_version(session, principal.scope, request.path_params["version_id"])
            )
        )
        return _json(head)

    async def put_head(self, request: Request) -> Response:
        """Finish an upload: the version is ready, and returned."""
        principal = await self._principal(request)
        version = await self._upload(request, principal)
        body = await read_body(request, max_bytes=MAX_HEAD_BYTES, tenant_id=version.tenant_id)
        head = decode_struct(body, ManifestHead)
        actor = user_actor(request, principal)
        return _shown(await self._transfers.publish(version, head, actor))

    async def put_archive(self, request: Request) -> Response:
        """Upload a few small files at once, as a tar archive: the version is ready then."""
        principal = await self._principal(request)
        version = await self._upload(request, principal)
        actor = user_actor(request, principal)
        return _shown(await self._transfers.receive_archive(request, version, actor))

    async def _upload(self, request: Request, principal: Principal) -> DatasetVersion:
        version_id = request.path_params["version_id"]
        return await self._database.run(
            lambda session: get_upload(session, principal.scope, version_id)
        )

    async def _receive(self, request: Request, max_bytes: int) -> Response:
        principal, sha256 = await self._principal(request), digest_of(request)
        version = await self._upload(request, principal)

        def require_open(session: Session, now: datetime) -> None:
            announce(session, version, {sha256}, now)

        return await self._transfers.receive(
            request, version.tenant_id, max_bytes=max_bytes, before=require_open
        )

    async def _principal(self, request: Request) -> Principal:
        principal = await to_thread.run_sync(self._identify, request.scope)
        if principal is None:
            raise UnauthenticatedError(
                "Sign in, or send an API token as 'Authorization: Bearer vdt_...'."
            )
        if principal.via is Via.SESSION:
            refuse_other_sites(request, is_https=self._is_https)
        return principal


def create_user_app(
    settings: ServerSettings, database: Database, *, identify: Identify, clock: Clock
) -> Starlette:
    """Return the application for users."""
    endpoints = UserDatasets(
        database,
        PartTransfers(database, PartStore(settings), clock),
        identify=identify,
        is_https=settings.resolved_public_url.startswith("https:"),
    )
    version = "/api/v1/dataset-versions/{version_id}"
    routes = [
        Route(f"{version}/parts/{{sha256}}", endpoints.part, methods=["GET"]),
        Route(f"{version}/parts/{{sha256}}", endpoints.put_part, methods=["PUT"]),
        Route(f"{version}/pages/{{sha256}}", endpoints.part, methods=["GET"]),
        Route(f"{version}/pages/{{sha256}}", endpoints.put_page, methods=["PUT"]),
        Route(f"{version}/head", endpoints.head, methods=["GET"]),
        Route(f"{version}/head", endpoints.put_head, methods=["PUT"]),
        Route(f"{version}/archive", endpoints.put_archive, methods=["PUT"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def is_for_users(path: str) -> bool:
    """Return whether a path belongs to the application for users."""
    return _PATH.fullmatch(path) is not None


def route_of_user(scope: ASGIScope) -> str:
    """Return the route of a request of users, for the metrics."""
    match = _PATH.fullmatch(scope["path"])
    rest = match[1].partition("/") if match else ("", "", "")
    return f"/api/v1/dataset-versions/<version_id>/{rest[0]}{'/<sha256>' if rest[1] else ''}"


def _version(session: Session, request: Request, agent: Agent) -> DatasetVersion:
    version_id: str = request.path_params["version_id"]
    version = session.get(DatasetVersion, version_id)
    if version is None or (
        version.tenant_id != agent.tenant_id
        and version_id not in rented_data(session, agent.appliance_id)
    ):
        raise NotFoundError.of("dataset version", version_id)
    return version


def _attempt_of(request: Request) -> str:
    """Return the attempt that a part belongs to, as the portal's own addresses name it."""
    return request.query_params.get(ATTEMPT_PARAMETER, "")


def _indexed_version(
    session: Session, request: Request, agent: Agent, *, is_ready_fine: bool = False
) -> DatasetVersion:
    version = _version(session, request, agent)
    is_open = version.state is VersionState.INDEXING or (
        is_ready_fine and version.state is VersionState.READY
    )
    if version.indexing_appliance_id != agent.appliance_id or not is_open:
        raise ConflictError(
            f"Version {version.number} of {version.dataset.name} is not read by this appliance, "
            "or not any more.",
            code="not_indexing",
        )
    return version


def _shown(version: DatasetVersion) -> Response:
    shown = {"id": version.id, "number": version.number, "digest": version.digest}
    return Response(msgspec.json.encode(shown), media_type="application/json")


def _json(body: msgspec.Struct) -> Response:
    return Response(
        msgspec.json.encode(body), media_type="application/json", headers=NO_STORE_HEADERS
    )
