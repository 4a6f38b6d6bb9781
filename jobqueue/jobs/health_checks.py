"""Validation of the health checks of services."""

from collections.abc import Iterator

from core.spec import limit_errors
from protocol.job_spec import HealthCheck, HealthCheckKind

MAX_LENGTH = 2000


def health_check_errors(check: HealthCheck) -> Iterator[str]:
    """Yield what is wrong with a health check."""
    if check.kind is not HealthCheckKind.COMMAND and not check.port:
        yield "port of the check is 0; enter 1 or more."
    path, command = check.path, check.command
    is_path = path.startswith("/") and path.isprintable() and " " not in path
    if check.kind is HealthCheckKind.HTTP and (not is_path or len(path) > MAX_LENGTH):
        yield f"{path!r} is not a path; enter one such as '/health'."
    is_command = command.strip() and "\0" not in command and len(command) <= MAX_LENGTH
    if check.kind is HealthCheckKind.COMMAND and not is_command:
        yield f"{command!r} is not a command; enter one such as 'pg_isready'."
    for _, error in limit_errors(check):
        yield error.replace(" is ", " of the check is ")
