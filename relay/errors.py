"""Errors of a relay, in the format of the agent API."""

from core.errors import UnavailableError


class UpstreamAwayError(UnavailableError):
    """The portal does not answer, or is too busy to."""

    default_code = "portal_away"
    retry_after_seconds = 10.0


class UpstreamBusyError(UpstreamAwayError):
    """The portal answers, but can't accept this request now."""

    default_code = "portal_busy"
    retry_after_seconds = 2.0


class UpstreamFailedError(UpstreamBusyError):
    """The portal failed on this request, perhaps because of a write in it."""

    default_code = "portal_failed"


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
