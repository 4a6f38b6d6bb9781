"""Validation of the health checks of services."""

from collections.abc import Iterator

from protocol.attempts import HealthCheck, HealthCheckKind

MAX_PORT = 65535
MAX_CHECK_SECONDS = 3600
MAX_CHECK_FAILURES = 100
MAX_LENGTH = 2000


def health_check_errors(check: HealthCheck) -> Iterator[str]:
    """Yield what is wrong with a health check."""
    if check.kind is not HealthCheckKind.COMMAND and not 0 < check.port <= MAX_PORT:
        yield f"The port of the check is {check.port}; enter 1 to {MAX_PORT}."
    path, command = check.path, check.command
    is_path = path.startswith("/") and path.isprintable() and " " not in path
    if check.kind is HealthCheckKind.HTTP and (not is_path or len(path) > MAX_LENGTH):
        yield f"{path!r} is not a path; enter one such as '/health'."
    is_command = command.strip() and "\0" not in command and len(command) <= MAX_LENGTH
    if check.kind is HealthCheckKind.COMMAND and not is_command:
        yield f"{command!r} is not a command; enter one such as 'pg_isready'."
    for name, least in (("interval_seconds", 1), ("timeout_seconds", 1), ("grace_seconds", 0)):
        if not least <= getattr(check, name) <= MAX_CHECK_SECONDS:
            setting = f"{name} of the check is {getattr(check, name):g}"
            yield f"{setting}; enter {least} to {MAX_CHECK_SECONDS}."
    if not 1 <= check.max_failures <= MAX_CHECK_FAILURES:
        setting = f"max_failures of the check is {check.max_failures}"
        yield f"{setting}; enter 1 to {MAX_CHECK_FAILURES}."
