"""`/agent/v1/results`: what appliances announce of their attempts' results, and fetch again."""

import msgspec
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from access.database import Database
from access.identity.auth import Authenticator
from access.ingest.body import decode_struct, read_body
from core.clock import Clock
from core.errors import UnavailableError
from core.secretbox import SecretBox
from datasets.buckets import BUCKET_GONE, Bucket, bucket_of
from datasets.models import DataPart
from jobqueue.results.announcements import (
    ATTEMPT_PARAMETER,
    Announced,
    record_results,
    result_part,
    stored_results,
)
from protocol.results import PartSource, PartTarget, ResultReply, ResultUpload

# 20,000 parts, each with its hash and size, and 1,000 paths.
MAX_RESULTS_BYTES = 8 * 1024 * 1024
# What a reply offers at once: signed addresses are long, and would expire before they are used.
MAX_TARGETS = 64
_PARTS_PATH = "/agent/v1/parts"


class ResultEndpoints:
    """The endpoints of results."""

    def __init__(
        self, authenticator: Authenticator, database: Database, *, box: SecretBox, clock: Clock
    ) -> None:
        self._authenticator = authenticator
        self._database = database
        self._box = box
        self._clock = clock

    async def announce(self, request: Request) -> Response:
        """Store announced files; return the parts that are missing."""
        agent = await self._authenticator.agent(request)
        body = await read_body(request, max_bytes=MAX_RESULTS_BYTES, tenant_id=agent.tenant_id)
        upload = decode_struct(body, ResultUpload)
        now = self._clock()

        def record(session: Session) -> tuple[Announced, Bucket | None, bool]:
            announced = record_results(session, agent.appliance_id, upload, now=now)
            if not announced.missing:
                return announced, None, False
            bucket = bucket_of(session, announced.connection_id, self._box)
            return announced, bucket, announced.tenant_id != agent.tenant_id

        announced, bucket, has_rented = await self._database.run(record)
        targets = [
            PartTarget(
                sha256=sha256,
                url=_part_url(sha256, upload.attempt_id if has_rented else "")
                if bucket is None
                else bucket.put_url(sha256),
            )
            for sha256 in announced.missing[:MAX_TARGETS]
        ]
        return _json(
            ResultReply(
                stored=list(announced.stored),
                missing=targets,
                refused=dict(announced.refused),
                is_unknown=not announced.tenant_id,
            )
        )

    async def stored(self, request: Request) -> Response:
        """Return the files that the job of an attempt has."""
        agent = await self._authenticator.agent(request)
        attempt_id = request.path_params["attempt_id"]
        after = request.query_params.get("after", "")
        page = await self._database.run(
            lambda session: stored_results(session, agent.appliance_id, attempt_id, after=after)
        )
        return _json(page)

    async def source(self, request: Request) -> Response:
        """Return where a part of a job's results is."""
        agent = await self._authenticator.agent(request)
        attempt_id, sha256 = request.path_params["attempt_id"], request.path_params["sha256"]

        def find(session: Session) -> tuple[DataPart, Bucket | None]:
            part = result_part(session, agent.appliance_id, attempt_id, sha256)
            return part, bucket_of(session, part.connection_id, self._box)

        part, bucket = await self._database.run(find)
        if not part.is_in_bucket:
            has_rented = part.tenant_id != agent.tenant_id
            return _json(PartSource(url=_part_url(sha256, attempt_id if has_rented else "")))
        if bucket is None:
            raise UnavailableError(BUCKET_GONE)
        return _json(PartSource(url=bucket.get_url(sha256)))


def _part_url(sha256: str, attempt_id: str) -> str:
    """Return where a part is; it names the attempt where that is of another tenant."""
    query = f"?{ATTEMPT_PARAMETER}={attempt_id}" if attempt_id else ""
    return f"{_PARTS_PATH}/{sha256}{query}"


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
