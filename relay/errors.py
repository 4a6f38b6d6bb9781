"""Errors of a relay, in the format of the agent API."""

from core.errors import UnavailableError

RETRY_SECONDS = 10.0


class UpstreamAwayError(UnavailableError):
    """The portal does not answer, or is too busy to."""

    default_code = "portal_away"

    def __init__(self, message: str, *, retry_after_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UpstreamRefusedError(UnavailableError):
    """The portal does not accept the relay's token."""

    default_code = "relay_refused"
    retry_after_seconds = 30.0


class SpoolFullError(UnavailableError):
    """The portal is away, and no more writes fit on the relay's disk: agents keep their samples."""

    default_code = "spool_full"
    retry_after_seconds = 30.0


class RelayBusyError(UnavailableError):
    """Too much waits for the portal or the disk at this moment."""

    default_code = "relay_busy"
    retry_after_seconds = 2.0
