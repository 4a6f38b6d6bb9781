"""Errors of calls to the portal, besides `core.errors.UnavailableError`."""

from core.errors import UnavailableError, VedetteError


class PortalError(VedetteError):
    """The portal answered with an error: its message and the errors of each field."""


class JobTimeoutError(VedetteError):
    """A job did not end in time."""


class RestartingError(UnavailableError):
    """No portal answers at its address now, as while it restarts."""
