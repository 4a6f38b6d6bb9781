"""Web pages of jobs, each on an origin of its own: who may open one, and the proofs of it.

The portal proves to the job's origin who opens it by a *ticket* in the address, which is valid once
and for seconds. The origin keeps a *pass* in a cookie, which names the user's session; the rights
are read again every few seconds, so that a pass ends with the session, the membership or the job.
Programs send an API token instead.

The address of the first instance of a service that scales is that of the service: it leads to any
instance that serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError, UnauthenticatedError
from core.ids import hash_secret, new_id
from jobqueue.models import Attempt, Job
from jobqueue.queue.service import get_job
from jobqueue.services.autoscaling.instances import is_ready, wake_service
from jobqueue.services.scaling import service_id, service_instances
from jobqueue.states import AttemptState
from protocol.autoscaling import Autoscaling
from tenants.models import UsedTicket
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.users.sessions import principal_of_session
from tenants.users.tokens import token_principal

TICKET_SECONDS = 30
PASS_SECONDS = 24 * 3600
# Begins the session of a proof that is an API token, of which the rest is the secret.
TOKEN_PREFIX = "token "  # noqa: S105 - no secret
Kind = Literal["ticket", "pass"]


class Proof(msgspec.Struct, frozen=True):
    """The content of a ticket or a pass."""

    job_id: str
    port: int
    session_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job, or an instance of a service, runs."""

    job_id: str
    appliance_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a job's port, in one of some places; `user_id` opens it.

    Attributes:
        service: its service and tenant if that scales by itself and counts requests.
    """

    places: tuple[Place, ...]
    port: int
    user_id: str
    service: tuple[str, str] | None = None


class AsleepError(ConflictError):
    """No instance of a service serves now; a request may wake it.

    Attributes:
        user_id: who may open it.
        hold_seconds: how long a request of a program may wait.
    """

    default_code = "service_asleep"

    def __init__(self, message: str, *, user_id: str, hold_seconds: float) -> None:
        super().__init__(message)
        self.user_id = user_id
        self.hold_seconds = hold_seconds


def origin_of(public_url: str, domain: str, job_id: str, port: int) -> str:
    """Return the origin of a port of a job, at the scheme and port of the portal."""
    parts = urlsplit(public_url)
    at = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{job_id}-{port}.{domain}{at}"


class Proofs:
    """Signs tickets and passes, and verifies them."""

    def __init__(self, secret: str) -> None:
        self._signers = {
            kind: URLSafeTimedSerializer(secret, salt=f"vedette job {kind}")
            for kind in ("ticket", "pass")
        }

    def sign(self, kind: Kind, proof: Proof) -> str:
        """Return a proof as text."""
        # Two tickets of one second are different ones.
        return str(self._signers[kind].dumps(msgspec.to_builtins(proof) | {"nonce": new_id()}))

    def verify(self, kind: Kind, text: str) -> Proof:
        """Return what a text proves.

        Raises:
            UnauthenticatedError: nothing, or not any more.
        """
        age = TICKET_SECONDS if kind == "ticket" else PASS_SECONDS
        try:
            return msgspec.convert(self._signers[kind].loads(text, max_age=age), Proof)
        except (BadData, msgspec.ValidationError) as error:
            raise UnauthenticatedError("Open the page from the job again.") from error


def spend_ticket(session: Session, ticket: str, *, now: datetime) -> None:
    """Note that a ticket was used.

    Raises:
        UnauthenticatedError: it was used before, in whichever process.
    """
    session.add(UsedTicket(id=hash_secret(ticket), used_at=now))
    try:
        session.flush()
    except IntegrityError as error:
        raise UnauthenticatedError("Open the page from the job again.") from error


def controlled_job(session: Session, scope: Scope, job_id: str) -> Job:
    """Return a job whose programs the user may use: an own one, or any as an admin.

    Raises:
        NotFoundError: there is no such job.
        ForbiddenError: the role may not.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    return job


def port_of(session: Session, scope: Scope, job_id: str, port: int) -> Target:
    """Return where a port of a running job is.

    Raises:
        NotFoundError: there is no such job, or it has no such port.
        ForbiddenError: the role may not.
        AsleepError: no instance of the service serves now.
        ConflictError: the job does not run; code `job_not_running`.
    """
    job = controlled_job(session, scope, job_id)
    if job.autoscaling is not None and service_id(job) == job.id:
        instances = service_instances(session, job)
        if instances:
            return _port_of_service(scope, instances, port)
    if port not in {job_port["container_port"] for job_port in job.ports}:
        raise NotFoundError.of("port", str(port))
    attempt = job.attempt
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        message = f"The job {job.name!r} is not running ({job.state.value})."
        raise ConflictError(message, code="job_not_running")
    service = None if job.autoscaling is None else (service_id(job), job.tenant_id)
    return Target((_place(job, attempt),), port, scope.user_id, service)


def _port_of_service(scope: Scope, instances: Sequence[Job], port: int) -> Target:
    first = instances[0]
    if port not in {job_port["container_port"] for job_port in first.ports}:
        raise NotFoundError.of("port", str(port))
    places = tuple(
        _place(instance, instance.attempt)
        for instance in instances
        if is_ready(instance) and instance.attempt is not None
    )
    if not places:
        hold_seconds = msgspec.convert(first.autoscaling, Autoscaling).hold_seconds
        message = f"The service {first.name!r} is starting."
        raise AsleepError(message, user_id=scope.user_id, hold_seconds=hold_seconds)
    service = (service_id(first), first.tenant_id)
    return Target(places, port, scope.user_id, service)


def _place(job: Job, attempt: Attempt) -> Place:
    return Place(job.id, attempt.appliance_id, attempt.id)


def places_of(session: Session, job_id: str) -> tuple[str, ...]:
    """Return the instances that serve at the address of a service that scales; () for other jobs.

    For whoever forwards a request: it says nothing about who may open the job.
    """
    job = session.get(Job, job_id)
    if job is None or job.autoscaling is None or service_id(job) != job.id:
        return ()
    return tuple(instance.id for instance in service_instances(session, job) if is_ready(instance))


def wake(session: Session, job_id: str, user_id: str, *, now: datetime) -> bool:
    """Wake a service, if it sleeps; return whether it serves now.

    Args:
        session: the session.
        job_id: of the service.
        user_id: of a user who may open it, as `AsleepError` has.
        now: the time.

    Raises:
        NotFoundError: the job is gone.
        ConflictError: a budget is spent, or the service has ended.
    """
    if places_of(session, job_id):
        return True
    job = session.get(Job, job_id)
    if job is None:
        raise NotFoundError.of("job", job_id)
    wake_service(session, job, user_id, now=now)
    return False


def port_of_pass(session: Session, proof: Proof, *, now: datetime) -> Target:
    """Return where the port of a pass is, as `port_of`.

    Raises:
        UnauthenticatedError: the user has signed out.
    """
    if proof.session_id.startswith(TOKEN_PREFIX):
        secret = proof.session_id.removeprefix(TOKEN_PREFIX)
        principal = token_principal(session, secret, now=now)
        if principal is None:
            raise UnauthenticatedError("The API token is not valid. Create another one.")
        return port_of(session, principal.scope, proof.job_id, proof.port)
    principal = principal_of_session(session, proof.session_id, now=now)
    if principal is None or principal.support_session is not None:
        raise UnauthenticatedError("You have signed out of the portal. Sign in again.")
    return port_of(session, principal.scope, proof.job_id, proof.port)
