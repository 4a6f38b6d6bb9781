"""Sessions of users in running jobs: bounded, in the audit log, and ended when they should be.

A session runs commands in the container of a job through the tunnel of its appliance.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread
from starlette.requests import HTTPConnection
from starlette.types import Scope

from access.database import Database, user_actor
from access.jobs.other_sites import refuse_other_sites
from access.jobs.tunnels import Tunnel, Tunnels
from core.clock import Clock
from core.errors import (
    ConflictError,
    ForbiddenError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    VedetteError,
)
from core.quantities import format_duration
from core.rate_limits import ConcurrencyLimit
from core.settings import ServerSettings
from core.shared_limits import SharedLimits
from jobqueue.queue.shells import RunningJob, SessionKind, record_closed, record_opened, running_job
from protocol.exec import REFUSED, ExecRequest, TerminalSize
from tenants.principals import Principal, Via

if TYPE_CHECKING:
    import asyncssh

Identify = Callable[[Scope], Principal | None]
# How often the user's rights and the job's state are checked again.
CHECK_SECONDS = 30.0
_MAX_ERROR_BYTES = 4096


@dataclass
class JobSession:
    """An open session.

    Attributes:
        job: where commands run.
        reason: why the session ended, for the audit log.
    """

    job: RunningJob
    tunnel: Tunnel
    reason: str = "disconnected"
    used_at: float = field(default_factory=time.monotonic)

    def touch(self) -> None:
        """Note that the session is in use."""
        self.used_at = time.monotonic()

    @asynccontextmanager
    async def run(
        self, command: Sequence[str], *, size: TerminalSize | None = None, term: str = ""
    ) -> AsyncIterator["asyncssh.SSHClientProcess[bytes]"]:
        """Run a command, which ends with the block; in a terminal if it has a size.

        Raises:
            UnavailableError: the appliance is not connected any more.
        """
        import asyncssh  # noqa: PLC0415 - loaded with the first tunnel

        request = ExecRequest(attempt_id=self.job.attempt_id, command=list(command))
        try:
            process = await self.tunnel.ssh.create_process(
                msgspec.json.encode(request).decode(),
                encoding=None,
                term_type=(term or "xterm-256color") if size else None,
                term_size=(size.columns, size.rows) if size else (),
            )
            try:
                yield process
            finally:
                process.close()
        except (asyncssh.Error, BrokenPipeError) as error:
            raise _lost() from error

    async def call(self, script: str, *arguments: str) -> None:
        """Run a script of the shell to its end.

        Raises:
            ConflictError: it failed, code `exec_failed`; or can't run, code `exec_unavailable`.
        """
        async with self.run(["sh", "-c", script, "sh", *arguments]) as process:
            process.stdin.write_eof()
            errors = await errors_of(process)
            await check_ended(process, errors)


class JobSessions:
    """Opens sessions.

    Args:
        database: has jobs, and the audit log.
        tunnels: lead to the appliances.
        identify: returns the user of a request; called in a thread.
        settings: have the limits.
        clock: the time.
        limits: those that hold over all processes.
    """

    def __init__(
        self,
        database: Database,
        tunnels: Tunnels,
        *,
        identify: Identify,
        settings: ServerSettings,
        clock: Clock,
        limits: SharedLimits,
    ) -> None:
        self._database = database
        self._tunnels = tunnels
        self._identify = identify
        self._clock = clock
        self._is_https = settings.resolved_public_url.startswith("https:")
        self._idle_seconds = settings.job_session_idle_seconds
        # All of a job are in the process with the tunnel.
        self._of_job = ConcurrencyLimit(settings.max_sessions_per_job)
        self._of_tenant = limits.concurrent(
            "job sessions by tenant", settings.max_job_sessions_per_tenant
        )

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return the user of a request.

        Raises:
            UnauthenticatedError: no valid session or API token.
            ForbiddenError: a page of another site, or a support session.
        """
        principal = await to_thread.run_sync(self._identify, connection.scope)
        if principal is None:
            raise UnauthenticatedError(
                "Sign in, or send an API token as 'Authorization: Bearer vdt_...'."
            )
        if principal.support_session is not None:
            raise ForbiddenError("Support sessions can't open jobs.", code="support_session")
        if principal.via is Via.SESSION:
            refuse_other_sites(connection, is_https=self._is_https)
        return principal

    @asynccontextmanager
    async def open(
        self, connection: HTTPConnection, kind: SessionKind, detail: str
    ) -> AsyncIterator[JobSession]:
        """Open a session in the job of the path for the length of the block.

        The block is cancelled, and an error raised, when the session is idle for too long or the
        user may not go on.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the role may not.
            ConflictError: the job does not run.
            OverloadedError: too many sessions.
            UnavailableError: the appliance is not connected.
        """
        job = await self._job(connection)
        with (
            self._of_job.running(job.id) as is_admitted,
            self._of_tenant.running(job.tenant_id) as is_admitted_too,
        ):
            if not (is_admitted and is_admitted_too):
                whose = "The job" if not is_admitted else "Your tenant"
                raise OverloadedError(f"{whose} has too many open sessions. Close one.")
            async with self._tunnels.use(job.appliance_id) as tunnel:
                session = JobSession(job, tunnel)
                async with (
                    self._audited(connection, session, kind, detail),
                    self._watched(connection, session, kind),
                ):
                    yield session

    async def _job(self, connection: HTTPConnection) -> RunningJob:
        principal = await self.principal(connection)
        job_id = connection.path_params["job_id"]
        return await self._database.run(
            lambda session: running_job(session, principal.scope, job_id)
        )

    @asynccontextmanager
    async def _audited(
        self, connection: HTTPConnection, session: JobSession, kind: SessionKind, detail: str
    ) -> AsyncIterator[None]:
        job, actor = session.job, user_actor(connection, await self.principal(connection))
        now, began = self._clock(), time.monotonic()
        await self._database.run(
            lambda db: record_opened(db, job, kind, detail, now=now), actor=actor
        )
        try:
            yield
        except VedetteError as error:
            session.reason = error.code
            raise
        finally:
            now, seconds = self._clock(), time.monotonic() - began
            reason = session.reason
            ending = self._database.run(
                lambda db: record_closed(db, job, kind, reason=reason, seconds=seconds, now=now),
                actor=actor,
            )
            await asyncio.shield(ending)

    @asynccontextmanager
    async def _watched(
        self, connection: HTTPConnection, session: JobSession, kind: SessionKind
    ) -> AsyncIterator[None]:
        """Cancel the block when the session should end."""
        problem: VedetteError | None = None
        block = asyncio.current_task()

        async def watch() -> None:
            nonlocal problem
            try:
                while True:
                    await asyncio.sleep(min(CHECK_SECONDS, self._idle_seconds / 4))
                    if time.monotonic() - session.used_at >= self._idle_seconds:
                        idle = format_duration(self._idle_seconds)
                        raise ConflictError(
                            f"The {kind.value} was not used for {idle}.", code="idle_timeout"
                        )
                    if (await self._job(connection)).attempt_id != session.job.attempt_id:
                        raise ConflictError("The attempt has ended.", code="job_not_running")
            except VedetteError as error:
                problem = error
                if block is not None:
                    block.cancel()

        watching = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if problem is None or block is None:
                raise
            block.uncancel()
            raise problem from None
        finally:
            watching.cancel()


async def errors_of(process: "asyncssh.SSHClientProcess[bytes]") -> str:
    """Return the beginning of what a command writes to stderr, once it has ended."""
    output = b""
    while data := await process.stderr.read(_MAX_ERROR_BYTES):
        output = (output + data)[:_MAX_ERROR_BYTES]
    return output.decode(errors="replace").strip()


async def exit_code_of(process: "asyncssh.SSHClientProcess[bytes]") -> int:
    """Return the exit code of a command whose output has ended.

    Raises:
        ConflictError: the appliance can't run it; code `exec_unavailable`.
        UnavailableError: the appliance is not connected any more.
    """
    await process.wait_closed()
    if process.exit_signal is not None and process.exit_signal[0] == REFUSED:
        raise ConflictError(process.exit_signal[2], code="exec_unavailable")
    if process.exit_status is None:
        raise _lost()
    return process.exit_status


async def check_ended(process: "asyncssh.SSHClientProcess[bytes]", errors: str) -> None:
    """Raise `ConflictError` if a command whose output has ended has failed."""
    code = await exit_code_of(process)
    if code:
        raise ConflictError(errors or f"The command exited with code {code}.", code="exec_failed")


def _lost() -> UnavailableError:
    return UnavailableError(
        "The connection to the appliance was lost. Try again in a moment.",
        code="appliance_not_connected",
    )
