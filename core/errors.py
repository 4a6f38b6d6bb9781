"""The exception tree: each error knows its status, its stable code and what the user can do next.

A *code* is a word that programs may test (`job_not_found`); a *message* is a sentence for people;
*errors* maps a field to what is wrong with it.
"""

from collections.abc import Mapping, Sequence

FieldErrors = Mapping[str, Sequence[str]]


class VedetteError(Exception):
    """Base of every error that Vedette raises on purpose.

    Args:
        message: a sentence that names the field, the value and the next step.
        code: a stable word for programs; the class's default where it is left out.
        errors: field name to the faults found in it.
    """

    status = 500
    default_code = "internal_error"

    def __init__(
        self, message: str, *, code: str | None = None, errors: FieldErrors | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.errors: dict[str, list[str]] = {k: list(v) for k, v in (errors or {}).items()}


class InvalidInputError(VedetteError):
    """The request was understood and can't be taken: a field is missing or wrong."""

    status = 422
    default_code = "invalid_input"


class UnauthenticatedError(VedetteError):
    """Nobody known is asking: no credentials, or wrong, expired or revoked ones."""

    status = 401
    default_code = "unauthenticated"


class ForbiddenError(VedetteError):
    """Somebody known is asking for what their role does not allow in their own tenant."""

    status = 403
    default_code = "forbidden"


class NotFoundError(VedetteError):
    """No such object, or another tenant's: the two are told apart nowhere."""

    status = 404
    default_code = "not_found"

    @classmethod
    def of(cls, kind: str, ident: str) -> "NotFoundError":
        """Return the one 404 for a missing and a foreign object of this kind alike."""
        return cls(f"There is no {kind} {ident!r} here. Check the address or the id.")


class ConflictError(VedetteError):
    """The request clashes with the present state, such as a name already taken."""

    status = 409
    default_code = "conflict"


class TooLargeError(VedetteError):
    """The body is larger than this endpoint takes."""

    status = 413
    default_code = "too_large"


class OverloadedError(VedetteError):
    """Too much at once: the same request is welcome after `retry_after_seconds`."""

    status = 429
    default_code = "overloaded"

    def __init__(self, message: str, *, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(VedetteError):
    """A part that the answer needs (database, store, engine) does not answer now."""

    status = 503
    default_code = "unavailable"


class ConfigurationError(VedetteError):
    """The configuration has faults; `faults` lists all of them, one sentence each."""

    default_code = "bad_configuration"

    def __init__(self, faults: Sequence[str], *, source: str) -> None:
        self.faults = list(faults)
        if len(self.faults) == 1:
            super().__init__(f"{source}: {self.faults[0]}")
        else:
            lines = "\n".join(f"  - {fault}" for fault in self.faults)
            super().__init__(f"{source} has {len(self.faults)} faults:\n{lines}")
