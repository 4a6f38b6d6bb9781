"""What is known of the request that is being answered, for its log lines and metrics.

Threads that work for a request see its notes: they get a copy of the context, which has the same
dictionary.
"""

from collections.abc import Mapping
from contextvars import ContextVar

REQUEST_ID, ROUTE = "request_id", "route"
TENANT_ID, USER_ID, JOB_ID, APPLIANCE_ID = "tenant_id", "user_id", "job_id", "appliance_id"

_NOTES: ContextVar[dict[str, str] | None] = ContextVar("request_notes", default=None)


def begin_request(request_id: str) -> dict[str, str]:
    """Begin a request in this context; return its notes."""
    notes = {REQUEST_ID: request_id}
    _NOTES.set(notes)
    return notes


def note(name: str, value: str) -> None:
    """Note something about the current request, if there is one."""
    notes = _NOTES.get()
    if notes is not None and value:
        notes[name] = value


def request_notes() -> Mapping[str, str]:
    """Return the notes of the current request; empty outside of one."""
    return _NOTES.get() or {}
