"""The exception tree: each error has an HTTP status, a stable code, and a message with the next
step.

*errors* maps a field to what is wrong with it.
"""

from collections.abc import Mapping, Sequence

FieldErrors = Mapping[str, Sequence[str]]


class VedetteError(Exception):
    """Base of all errors that Vedette raises on purpose.

    Args:
        message: a sentence that names the field, the value and the next step.
        code: a stable word for programs; by default that of the class.
        errors: field name to its errors.
    """

    status = 500
    default_code = "internal_error"
    retry_after_seconds: float = 0.0
    """The value of the response's `Retry-After` header, if any."""

    def __init__(
        self, message: str, *, code: str | None = None, errors: FieldErrors | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.errors: dict[str, list[str]] = {k: list(v) for k, v in (errors or {}).items()}


class InvalidInputError(VedetteError):
    """A field is missing or invalid."""

    status = 422
    default_code = "invalid_input"


class UnauthenticatedError(VedetteError):
    """No credentials, or wrong, expired or revoked ones."""

    status = 401
    default_code = "unauthenticated"


class ForbiddenError(VedetteError):
    """The user's role or token does not permit it."""

    status = 403
    default_code = "forbidden"


class NotFoundError(VedetteError):
    """No such object, or another tenant's: both look the same."""

    status = 404
    default_code = "not_found"

    @classmethod
    def of(cls, kind: str, ident: str) -> "NotFoundError":
        """Return the same 404 for a missing and another tenant's object."""
        return cls(f"There is no {kind} {ident!r}. Check the address or the id.")


class ConflictError(VedetteError):
    """The request conflicts with the current state, such as a name that is taken."""

    status = 409
    default_code = "conflict"


class TooLargeError(VedetteError):
    """The body is too large for this endpoint."""

    status = 413
    default_code = "too_large"


class OverloadedError(VedetteError):
    """Too many requests: retry after `retry_after_seconds`."""

    status = 429
    default_code = "overloaded"
    retry_after_seconds: int

    def __init__(self, message: str, *, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(VedetteError):
    """A dependency (database, store, engine) is unavailable."""

    status = 503
    default_code = "unavailable"
    retry_after_seconds = 5.0


class DatabaseUnavailableError(UnavailableError):
    """The database is busy or unreachable: the transaction was rolled back, and may be repeated."""

    default_code = "database_unavailable"
    retry_after_seconds = 2.0


class DeadlockError(DatabaseUnavailableError):
    """Two transactions waited for each other, and the database has rolled this one back."""


class ConfigurationError(VedetteError):
    """The configuration is invalid; `problems` lists all errors, a sentence each."""

    default_code = "bad_configuration"

    def __init__(self, problems: Sequence[str], *, source: str) -> None:
        self.problems = list(problems)
        if len(self.problems) == 1:
            super().__init__(f"{source}: {self.problems[0]}")
        else:
            lines = "\n".join(f"  - {problem}" for problem in self.problems)
            super().__init__(f"{source} has {len(self.problems)} errors:\n{lines}")
