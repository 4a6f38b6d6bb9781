"""The Python client of a Vedette portal."""

from collections.abc import Sequence
from typing import Any

from vedette.client import Client
from vedette.errors import JobTimeoutError, PortalError
from vedette.jobs import Job, JobFailedError
from vedette.training import log

__all__ = ["Client", "Job", "JobFailedError", "JobTimeoutError", "PortalError", "log", "query"]


def query(measurement: str, fields: Sequence[str], **options: Any) -> Any:  # noqa: ANN401 - a frame
    """Return aggregates of samples as a data frame, see `Client.query`.

    The portal and the token are those of `vedette login`, or of `VEDETTE_URL` and `VEDETTE_TOKEN`.
    """
    with Client() as client:
        return client.query(measurement, fields, **options)
