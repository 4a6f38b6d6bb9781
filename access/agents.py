"""`/agent/v1/*`: enroll, certificate, heartbeat, desired state, reports and logs.

The bodies are the types of `protocol`. Only a heartbeat keeps an appliance online.
"""

import math
from datetime import datetime
from typing import TypeVar

import msgspec
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from access.access_points import AccessPointLists
from access.database import Database, agent_actor
from access.errors import BadRequestError
from access.identity.agent_registry import Agent
from access.identity.auth import Authenticator, require_relayed
from access.ingest.body import decode_struct, read_body, read_plain_body
from access.longpoll import INTERVAL_SECONDS, ChangeWatch, disconnected
from core.clock import Clock, from_ns
from core.errors import InvalidInputError
from core.ids import ID_LENGTH
from core.secretbox import SecretBox
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.images.tokens import RegistryTokens
from jobqueue.jobs.restored import awaits_report
from jobqueue.logs.logs import append_logs
from jobqueue.rentals import without_names, without_words, words_of_customers
from jobqueue.services.tunnels import holder_of
from jobqueue.storage.service import record_storage
from logs.forwarding.queue import queue_output
from logs.ingest import LineRates, store_batches
from protocol.agent_update import HeartbeatReply, UpdateOrder
from protocol.attempts import DesiredState, LogAck, LogReply, LogUpload, ObservedReport
from protocol.enrollment import EnrollReply, EnrollRequest, IssuedCertificate, RenewalRequest
from protocol.heartbeat import Heartbeat
from protocol.inventory import MAX_REPORT_BYTES
from protocol.lines import MAX_UPLOAD_BYTES, LineUpload
from protocol.storage import MAX_REPORT_BYTES as MAX_STORAGE_REPORT_BYTES
from protocol.storage import StorageReport
from tenants.enrollment import ENROLLMENT_PREFIX, check_token, enroll_appliance
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.rollout_progress import answer_update
from tenants.models import Appliance
from tenants.pki.certificates import Issued, Issuer, issue_certificate, renew_certificate

T = TypeVar("T")

MAX_JSON_BYTES = 4 * 1024 * 1024
# Of a request without a token in its headers: an inventory of 16 GPUs takes 40 kB.
MAX_ANONYMOUS_BYTES = 256 * 1024
MAX_LOGS_BYTES = 1024 * 1024
MAX_WAIT_SECONDS = 30.0
_MAX_VERSION_LENGTH = 50
_MAX_INT64 = 2**63 - 1
# Every number with this many digits fits into 64 bits.
_MAX_DIGITS = 18


class AgentEndpoints:
    """The endpoints of agents, except ingest."""

    def __init__(
        self,
        authenticator: Authenticator,
        database: Database,
        watch: ChangeWatch,
        *,
        issuer: Issuer,
        box: SecretBox,
        registry_tokens: RegistryTokens,
        certificate_replaces_secret: bool,
        max_log_bytes: int,
        line_rates: LineRates,
        access_points: AccessPointLists,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        self._access_points = access_points
        self._max_log_bytes = max_log_bytes
        self._line_rates = line_rates
        self._box = box
        self._registry_tokens = registry_tokens
        self._certificate_replaces_secret = certificate_replaces_secret
        self._authenticator = authenticator
        self._database = database
        self._watch = watch
        self._clock = clock

    async def enroll(self, request: Request) -> Response:
        """Exchange an enrollment token for an identity.

        The token is in the body. If it is in the header, too, the body may be larger.
        """
        failures, now = self._authenticator.failures, self._clock()
        failures.check(request.scope)
        max_bytes = MAX_ANONYMOUS_BYTES
        token = request.headers.get("Authorization", "").rpartition(" ")[2]
        if token.startswith(f"{ENROLLMENT_PREFIX}_"):
            with failures.counted(request.scope):
                await self._database.run(lambda session: check_token(session, token, now=now))
            max_bytes = MAX_REPORT_BYTES
        packed = await read_plain_body(request, max_bytes=max_bytes)
        body = decode_struct(packed, EnrollRequest)
        with failures.counted(request.scope):
            appliance, secret, issued = await self._database.run(
                lambda session: _enroll(session, self._issuer, body, request.scope, now=now),
                actor=agent_actor(request, body.name),
            )
        reply = EnrollReply(
            appliance_id=appliance.id,
            tenant_id=appliance.tenant_id,
            agent_token=secret,
            certificate=self._certificate(issued) if issued is not None else None,
        )
        return _json(reply, status=201)

    async def certificate(self, request: Request) -> Response:
        """Renew a certificate, authenticated by the present one or the agent token."""
        agent, is_by_secret = await self._authenticator.renewing_agent(request)
        body = await self._struct(request, agent, RenewalRequest)
        now = self._clock()
        issued = await self._database.run(
            lambda session: renew_certificate(
                session,
                self._issuer,
                agent.appliance_id,
                csr=body.csr,
                is_by_secret=is_by_secret,
                now=now,
            ),
            actor=agent_actor(request, agent.name),
        )
        return _json(self._certificate(issued))

    async def heartbeat(self, request: Request) -> Response:
        """Record a heartbeat with inventory, health and GPU processes."""
        agent = await self._authenticator.agent(request)
        beat = await self._struct(request, agent, Heartbeat, max_bytes=MAX_REPORT_BYTES)
        if not 0 <= beat.sent_at_ns <= _MAX_INT64:
            raise _invalid("sent_at_ns", f"{beat.sent_at_ns} is not a time in nanoseconds")
        order = await self._database.run(
            lambda session: _record(session, agent.appliance_id, beat, now=self._clock())
        )
        points = await self._access_points.news_for(agent.tenant_id, beat.access_points_revision)
        if order is None and points is None:
            return Response(status_code=204)
        return _json(HeartbeatReply(update=order, access_points=points))

    async def desired(self, request: Request) -> Response:
        """Return the desired state once its generation differs from the agent's, else 204.

        A poll that waits takes part in the one query that the watch sends for all of them.
        """
        agent = await self._authenticator.agent(request)
        generation = _integer(request, "generation", default=-1)
        wait_seconds = wait_seconds_of(request)
        if generation >= 0 and wait_seconds >= INTERVAL_SECONDS:
            if not await self._watch.wait(
                agent.appliance_id,
                generation,
                timeout_seconds=wait_seconds,
                disconnected=disconnected(request),
            ):
                return Response(status_code=204)
            # It may have been revoked in the meantime.
            await self._authenticator.agent(request)
        state = await self._desired_state(agent.appliance_id)
        if state is None or state.generation == generation:
            return Response(status_code=204)
        return _json(state)

    async def observed(self, request: Request) -> Response:
        """Apply the appliance's report on its attempts."""
        agent = await self._authenticator.agent(request)
        report = await self._struct(request, agent, ObservedReport)
        now = self._clock()
        await self._database.run(
            lambda session: apply_report(
                session,
                agent.appliance_id,
                report.attempts,
                probe=report.probe,
                challenge=report.challenge,
                now=now,
            )
        )
        return Response(status_code=204)

    async def storage(self, request: Request) -> Response:
        """Store the report of the container storage, and return what to delete."""
        agent = await self._authenticator.agent(request)
        report = await self._struct(
            request, agent, StorageReport, max_bytes=MAX_STORAGE_REPORT_BYTES
        )
        now = self._clock()
        order = await self._database.run(
            lambda session: record_storage(session, agent.appliance_id, report, now=now)
        )
        return _json(order)

    async def logs(self, request: Request) -> Response:
        """Append to the logs of attempts."""
        agent = await self._authenticator.agent(request)
        body = await read_body(request, max_bytes=MAX_LOGS_BYTES, tenant_id=agent.tenant_id)
        try:
            upload = msgspec.msgpack.decode(body, type=LogUpload)
        except msgspec.MsgspecError as error:
            raise BadRequestError(f"The body is not valid MessagePack: {error}.") from error
        if any(not 0 <= chunk.offset <= _MAX_INT64 for chunk in upload.chunks):
            raise _invalid("offset", "not the size of a log")
        now = self._clock()

        def append(session: Session) -> list[LogAck]:
            acks = append_logs(
                session,
                agent.appliance_id,
                upload.chunks,
                max_bytes=self._max_log_bytes,
                box=self._box,
            )
            queue_output(session, upload.chunks, acks, now=now)
            return acks

        return _json(LogReply(acks=await self._database.run(append)))

    async def lines(self, request: Request) -> Response:
        """Store lines of the appliance's own logs."""
        agent = await self._authenticator.agent(request)
        body = await read_body(request, max_bytes=MAX_UPLOAD_BYTES, tenant_id=agent.tenant_id)
        upload = decode_struct(body, LineUpload)
        self._line_rates.check(agent.tenant_id, agent.appliance_id, len(body))
        now = self._clock()

        def store(session: Session) -> None:
            words = words_of_customers(session, agent.appliance_id, now=now)
            store_batches(
                session,
                tenant_id=agent.tenant_id,
                appliance_id=agent.appliance_id,
                batches=without_words(upload.batches, words),
                now=now,
            )

        await self._database.run(store)
        return Response(status_code=204)

    async def _struct(
        self, request: Request, agent: Agent, kind: type[T], *, max_bytes: int = MAX_JSON_BYTES
    ) -> T:
        body = await read_body(request, max_bytes=max_bytes, tenant_id=agent.tenant_id)
        return decode_struct(body, kind)

    def _certificate(self, issued: Issued) -> IssuedCertificate:
        return IssuedCertificate(
            certificate=issued.certificate,
            authorities=issued.authorities,
            lifetime_seconds=(issued.not_after - self._clock()).total_seconds(),
            replaces_secret=self._certificate_replaces_secret,
        )

    async def _desired_state(self, appliance_id: str) -> DesiredState | None:
        """Return the desired state; after a restore None, until the appliance has reported."""

        def read(session: Session) -> DesiredState | None:
            if awaits_report(session, appliance_id):
                return None
            return desired_state(
                session,
                appliance_id,
                box=self._box,
                registry=self._registry_tokens,
                now=self._clock(),
                wants_tunnel=holder_of(session, appliance_id) is not None,
            )

        return await self._database.run(read)


def _record(
    session: Session, appliance_id: str, beat: Heartbeat, *, now: datetime
) -> UpdateOrder | None:
    version = beat.agent_version[:_MAX_VERSION_LENGTH]
    processes = without_names(session, appliance_id, beat.gpu_processes)
    update_id = record_heartbeat(
        session,
        appliance_id,
        inventory=beat.inventory,
        agent_version=version,
        sent_at=from_ns(beat.sent_at_ns),
        health=beat.health,
        gpu_processes=processes,
        instance_id=beat.instance_id[:ID_LENGTH],
        can_update=beat.can_update,
        access_point=beat.access_point,
        now=now,
    )
    if update_id is None:
        return None
    return answer_update(session, update_id, beat.update, version=version, now=now)


def _enroll(
    session: Session, issuer: Issuer, body: EnrollRequest, scope: Scope, *, now: datetime
) -> tuple[Appliance, str, Issued | None]:
    """Enroll and sign in one transaction: an invalid signing request uses up no token."""
    appliance, secret = enroll_appliance(
        session,
        secret=body.token,
        name=body.name,
        inventory=body.inventory,
        site=body.site,
        region=body.region,
        labels=body.labels,
        now=now,
    )
    require_relayed(scope, appliance.tenant_id)
    if not body.csr:
        return appliance, secret, None
    return appliance, secret, issue_certificate(session, issuer, appliance, csr=body.csr, now=now)


def _json(body: msgspec.Struct, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _integer(request: Request, name: str, *, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise _invalid(name, f"{text[:50]!r} is not an integer")
    return int(text)


def wait_seconds_of(request: Request) -> float:
    """Return how long a request may wait, at most `MAX_WAIT_SECONDS`."""
    text = request.query_params.get("wait_seconds", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise _invalid("wait_seconds", f"{text[:50]!r} is not a number of seconds")
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _invalid(field: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{field}: {problem}.", errors={field: [problem]})
