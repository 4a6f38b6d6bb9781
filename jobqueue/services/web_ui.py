"""Web pages of jobs, each on an origin of its own: who may open one, and the proofs of it.

The portal proves to the job's origin who opens it by a *ticket* in the address, which is valid once
and for seconds. The origin keeps a *pass* in a cookie, which names the user's session; the rights
are read again every few seconds, so that a pass ends with the session, the membership or the job.
"""

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
from jobqueue.models import Job
from jobqueue.queue.service import get_job
from jobqueue.states import AttemptState
from tenants.models import UsedTicket
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.users.sessions import principal_of_session

TICKET_SECONDS = 30
PASS_SECONDS = 24 * 3600
Kind = Literal["ticket", "pass"]


class Proof(msgspec.Struct, frozen=True):
    """The content of a ticket or a pass."""

    job_id: str
    port: int
    session_id: str


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a job's port; `user_id` opens it."""

    appliance_id: str
    attempt_id: str
    port: int
    user_id: str


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
        ConflictError: the job does not run; code `job_not_running`.
    """
    job = controlled_job(session, scope, job_id)
    if port not in {job_port["container_port"] for job_port in job.ports}:
        raise NotFoundError.of("port", str(port))
    attempt = job.attempt
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        message = f"The job {job.name!r} is not running ({job.state.value})."
        raise ConflictError(message, code="job_not_running")
    return Target(attempt.appliance_id, attempt.id, port, scope.user_id)


def port_of_pass(session: Session, proof: Proof, *, now: datetime) -> Target:
    """Return where the port of a pass is, as `port_of`.

    Raises:
        UnauthenticatedError: the user has signed out.
    """
    principal = principal_of_session(session, proof.session_id, now=now)
    if principal is None or principal.support_session is not None:
        raise UnauthenticatedError("You have signed out of the portal. Sign in again.")
    return port_of(session, principal.scope, proof.job_id, proof.port)
