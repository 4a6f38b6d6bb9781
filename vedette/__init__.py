"""The Python client of a Vedette portal."""

from vedette.client import Client
from vedette.errors import JobTimeoutError, PortalError
from vedette.jobs import Job, JobFailedError

__all__ = ["Client", "Job", "JobFailedError", "JobTimeoutError", "PortalError"]
