"""The `marathon` package's client, with its defects worked around; nothing else imports it.

Version 0.13.0 is the last one. What is worked around here, each at its place:

- It uses `collections.Iterable`, which Python 3.10 removed, for every nested object.
- Its models raise `TypeError` for JSON fields that they don't know (`role` in the queue and
  `checkResult` of tasks since Marathon 1.9, `tty` and `resourceLimits` of apps): answers stay JSON.
- It sends every request again to the next server after any error, so that a `POST` could happen
  twice: requests go through `SchedulerAPI`, which repeats reads only.
- `get_app("/a")` requests `/v2/apps//a`, and booleans are sent as `True` and `False`.
- The stream of events is opened without the token, and its reader dies of a connection error by
  an attribute (`message`) that exceptions don't have.
- `minimal=True` drops empty values of nested objects: what is sent here has none that matter.
- `scale_app` reads models; `update_app` with `instances` does the same.
- `kill_tasks(batch_size=...)` raises; it is not used.
"""

import collections.abc
import contextlib
import logging
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

import marathon
import marathon.util
import requests
from marathon.exceptions import MarathonError
from marathon.models import MarathonApp

from jobqueue.executors.scheduler_api import SchedulerAPI
from jobqueue.executors.settings import ServerSettings

__all__ = ["Marathon", "MarathonApp", "MarathonError"]

# `marathon.util` says `collections.Iterable`; the name `collections` in that module alone changes.
marathon.util.collections = collections.abc
# It logs every error with its body, secrets of apps included; ours are logged by the agent.
logging.getLogger("marathon").setLevel(logging.CRITICAL)

Answer = dict[str, Any]


class Marathon(marathon.MarathonClient):  # type: ignore[misc] # the package has no types
    """The client of one Marathon, whose methods return JSON instead of models."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings.url, timeout=settings.timeout_seconds)
        self.api = SchedulerAPI("Marathon", settings)
        self._stream: requests.Response | None = None
        self._lock = Lock()
        self._is_closed = False

    @staticmethod
    def _parse_response(
        response: requests.Response,
        clazz: type,
        is_list: bool = False,  # noqa: FBT001, FBT002 - the package's signature
        resource_name: str | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON itself, with all its fields."""
        del clazz, is_list
        body = response.json()
        return body[resource_name] if resource_name else body

    def _do_request(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        data: str | None = None,
    ) -> requests.Response:
        """Send a request once, with a clean path and booleans as Marathon writes them."""
        clean = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in (params or {}).items()
        }
        return self.api.request(method, path.replace("//", "/"), params=clean, data=data)

    def events(self, *event_types: str) -> Iterator[None]:
        """Yield once when connected, then for each event; end when the connection does.

        Events have no order and are never repeated: they only say that reading is worth it.

        Raises:
            ExecutorError: Marathon does not answer.
            requests.RequestException: the connection has broken.
        """
        with self.api.stream("/v2/events", {"event_type": event_types}) as response:
            with self._lock:
                if self._is_closed:
                    return
                self._stream = response
            yield
            for line in response.iter_lines(chunk_size=1):
                if line.startswith(b"data:"):
                    yield

    def close(self) -> None:
        """Close the connections, that of the events too."""
        with self._lock:
            self._is_closed, stream = True, self._stream
        if stream is not None:
            # Raised if the stream ended at the same moment.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                stream.raw.shutdown()
        self.api.close()
        self.session.close()
        self.sse_session.close()
