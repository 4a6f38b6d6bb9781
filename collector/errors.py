"""Errors of the agent."""

from core.errors import UnavailableError, VedetteError
from plugins.base import PluginError


class CollectorError(VedetteError):
    """Base of the agent's errors."""

    default_code = "collector_error"


class PortalUnreachableError(CollectorError, UnavailableError):
    """No access point answers, or the portal is overloaded; try again later."""

    default_code = "portal_unreachable"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds or 0.0


class PortalRefusedError(CollectorError):
    """The portal refused a request; `http_status` says why."""

    default_code = "portal_refused"

    def __init__(self, message: str, *, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class InvalidAccessPointsError(CollectorError):
    """A list of access points that the agent must not use."""

    default_code = "access_points_invalid"


class CertificateError(CollectorError):
    """A key or certificate of this appliance can't be created, stored or read."""

    default_code = "certificate_failed"


class AlreadyRunningError(CollectorError):
    """Another agent is running on the same data folder."""

    default_code = "agent_already_running"


class EnrollmentError(CollectorError):
    """This appliance can't be enrolled, or its identity can't be stored or read."""

    default_code = "enrollment_failed"


class ReadingTimedOutError(PluginError):
    """A reading exceeded its time limit; its worker process was killed."""
