"""What a call of the portal may raise, besides `core.errors.UnavailableError`."""

from core.errors import VedetteError


class PortalError(VedetteError):
    """The portal answered with an error: its message and the errors of each field."""


class JobTimeoutError(VedetteError):
    """A job did not end in time."""
