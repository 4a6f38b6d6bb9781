"""What goes wrong between an appliance and its portal."""

from core.errors import UnavailableError, VedetteError
from plugins.base import PluginError


class CollectorError(VedetteError):
    """Base of the agent's errors."""

    default_code = "collector_error"


class PortalUnreachableError(CollectorError, UnavailableError):
    """No portal address answers at present, or the portal is overloaded; try again later."""

    default_code = "portal_unreachable"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class PortalRefusedError(CollectorError):
    """The portal answered and does not take this: `http_status` says why."""

    default_code = "portal_refused"

    def __init__(self, message: str, *, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class CertificateError(CollectorError):
    """A key or certificate of this appliance could not be made, kept or read."""

    default_code = "certificate_failed"


class AlreadyRunningError(CollectorError):
    """Another agent runs on the same data folder."""

    default_code = "agent_already_running"


class EnrolmentError(CollectorError):
    """This appliance could not be enrolled, or its identity can't be kept or read."""

    default_code = "enrolment_failed"


class ReadingTimedOutError(PluginError):
    """A reading passed its time limit, and the child process that it ran in was killed."""
