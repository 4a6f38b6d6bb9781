"""The agents' protocol, `/agent/v1/*`: enrol, say what is here, ask what to run, report, ship logs.

The bodies are those of `jobqueue.executors.wire`. Only a heartbeat counts as a sign of life.
"""

import math
from datetime import datetime

import msgspec
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from access.actors import agent_actor
from access.auth import Authenticator
from access.body import read_body, read_struct
from access.database import Database
from access.longpoll import GenerationWatch
from core.clock import Clock, from_ns
from core.errors import InvalidInputError
from core.ids import ID_LENGTH
from jobqueue.desired import apply_report, desired_state
from jobqueue.executors.wire import (
    DesiredState,
    EnrolReply,
    EnrolRequest,
    Heartbeat,
    IssuedCertificate,
    ObservedReport,
    RenewalRequest,
)
from jobqueue.logs import append_log
from tenants.entry.certificates import Issued, Issuer, issue_certificate, renew_certificate
from tenants.fleet.appliances import enrol_appliance, record_heartbeat
from tenants.models import Appliance

MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_LOG_CHUNK_BYTES = 1024 * 1024
MAX_WAIT_SECONDS = 30.0
_MAX_VERSION_LENGTH = 50
_MAX_INT64 = 2**63 - 1
# Every number of so many digits fits into 64 bits.
_MAX_DIGITS = 18


class AgentEndpoints:
    """What agents ask for, apart from pushing samples."""

    def __init__(
        self,
        authenticator: Authenticator,
        database: Database,
        watch: GenerationWatch,
        *,
        issuer: Issuer,
        is_certificate_enough: bool,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        self._is_certificate_enough = is_certificate_enough
        self._authenticator = authenticator
        self._database = database
        self._watch = watch
        self._clock = clock

    async def enroll(self, request: Request) -> Response:
        """Trade an enrolment token for an identity."""
        refusals, now = self._authenticator.refusals, self._clock()
        refusals.check(request.scope)
        asked = await read_struct(request, EnrolRequest, max_bytes=MAX_JSON_BYTES)
        with refusals.counted(request.scope):
            appliance, secret, issued = await self._database.run(
                lambda session: _enrol(session, self._issuer, asked, now=now),
                actor=agent_actor(request, asked.name),
            )
        reply = EnrolReply(
            appliance_id=appliance.id,
            tenant_id=appliance.tenant_id,
            agent_token=secret,
            certificate=self._wire(issued) if issued is not None else None,
        )
        return _json(reply, status=201)

    async def certificate(self, request: Request) -> Response:
        """Trade the present certificate, or the secret, for a new certificate."""
        agent, is_by_secret = await self._authenticator.renewing_agent(request)
        asked = await read_struct(request, RenewalRequest, max_bytes=MAX_JSON_BYTES)
        now = self._clock()
        issued = await self._database.run(
            lambda session: renew_certificate(
                session, self._issuer, agent.appliance_id,
                csr=asked.csr, is_by_secret=is_by_secret, now=now,
            ),
            actor=agent_actor(request, agent.name),
        )  # fmt: skip
        return _json(self._wire(issued))

    async def heartbeat(self, request: Request) -> Response:
        """Note that an appliance is alive, what it has, and how it does."""
        agent = await self._authenticator.agent(request)
        beat = await read_struct(request, Heartbeat, max_bytes=MAX_JSON_BYTES)
        if not 0 <= beat.sent_at_ns <= _MAX_INT64:
            raise _wrong("sent_at_ns", f"{beat.sent_at_ns} is no time in nanoseconds")
        now = self._clock()
        await self._database.run(
            lambda session: record_heartbeat(
                session,
                agent.appliance_id,
                inventory=msgspec.to_builtins(beat.inventory),
                agent_version=beat.agent_version[:_MAX_VERSION_LENGTH],
                sent_at=from_ns(beat.sent_at_ns),
                health=msgspec.to_builtins(beat.health),
                instance_id=beat.instance_id[:ID_LENGTH],
                now=now,
            )
        )
        return Response(status_code=204)

    async def desired(self, request: Request) -> Response:
        """Say what should run, as soon as it is not what the agent knows; 204 is no news."""
        agent = await self._authenticator.agent(request)
        generation = _integer(request, "generation", default=-1)
        wait_seconds = _wait_seconds(request)
        state = await self._desired_state(agent.appliance_id)
        if state.generation == generation:
            if not await self._watch.wait(
                agent.appliance_id,
                generation,
                timeout_seconds=wait_seconds,
                gone=_hung_up(request),
            ):
                return Response(status_code=204)
            # It may have been revoked while it waited.
            await self._authenticator.agent(request)
            state = await self._desired_state(agent.appliance_id)
        return _json(state)

    async def observed(self, request: Request) -> Response:
        """Take over what the appliance sees of its attempts."""
        agent = await self._authenticator.agent(request)
        report = await read_struct(request, ObservedReport, max_bytes=MAX_JSON_BYTES)
        now = self._clock()
        await self._database.run(
            lambda session: apply_report(session, agent.appliance_id, report.attempts, now=now)
        )
        return Response(status_code=204)

    async def log(self, request: Request) -> Response:
        """Store a piece of an attempt's output."""
        agent = await self._authenticator.agent(request)
        attempt_id = request.path_params["attempt_id"]
        offset = _integer(request, "offset", default=0)
        data = await read_body(request, max_bytes=MAX_LOG_CHUNK_BYTES)
        ack = await self._database.run(
            lambda session: append_log(
                session, agent.appliance_id, attempt_id, offset=offset, data=data
            )
        )
        return _json(ack)

    def _wire(self, issued: Issued) -> IssuedCertificate:
        return IssuedCertificate(
            certificate=issued.certificate,
            authorities=issued.authorities,
            lifetime_seconds=(issued.not_after - self._clock()).total_seconds(),
            is_enough=self._is_certificate_enough,
        )

    async def _desired_state(self, appliance_id: str) -> DesiredState:
        return await self._database.run(lambda session: desired_state(session, appliance_id))


def _enrol(
    session: Session, issuer: Issuer, asked: EnrolRequest, *, now: datetime
) -> tuple[Appliance, str, Issued | None]:
    """Do it in one transaction: a request that can't be signed spends no token."""
    appliance, secret = enrol_appliance(
        session,
        secret=asked.token,
        name=asked.name,
        inventory=msgspec.to_builtins(asked.inventory),
        site=asked.site,
        region=asked.region,
        labels=asked.labels,
        now=now,
    )
    if not asked.csr:
        return appliance, secret, None
    return appliance, secret, issue_certificate(session, issuer, appliance, csr=asked.csr, now=now)


async def _hung_up(request: Request) -> None:
    """Return when the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(body: msgspec.Struct, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _integer(request: Request, name: str, *, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise _wrong(name, f"{text[:50]!r} is not an integer")
    return int(text)


def _wait_seconds(request: Request) -> float:
    text = request.query_params.get("wait_seconds", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise _wrong("wait_seconds", f"{text[:50]!r} is not a number of seconds")
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _wrong(field: str, fault: str) -> InvalidInputError:
    return InvalidInputError(f"{field}: {fault}.", errors={field: [fault]})
