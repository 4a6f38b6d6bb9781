"""A loop of the agent: one thread that repeats a step until the agent stops."""

import logging
from collections.abc import Callable
from threading import Event, Thread

from collector.backoff import Backoff
from collector.errors import PortalRefusedError, PortalUnreachableError

log = logging.getLogger(__name__)

FAULT_WAIT_SECONDS = 5.0
SHUT_OUT = frozenset({401, 403})
COMPLAIN_EVERY_FAILURES = 4

Step = Callable[[], float]


class Loop:
    """Repeats `step`, which returns how many seconds to wait; a failing step never ends the loop.

    `is_polling` says that the portal may hold a step for long. The thread is a daemon: a question
    that is held must not hold up the end of the agent.
    """

    def __init__(
        self,
        name: str,
        step: Step,
        *,
        stop: Event,
        at_end: Callable[[], None],
        is_polling: bool = False,
    ) -> None:
        self._name = name
        self._step = step
        self._stop = stop
        self._at_end = at_end
        self.is_polling = is_polling
        self._backoff = Backoff()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._stop.wait(self._next_wait())
        finally:
            self._at_end()

    def _next_wait(self) -> float:
        try:
            wait_seconds = self._step()
        except PortalUnreachableError as error:
            return self._failed(error.message, at_least=error.retry_after_seconds)
        except PortalRefusedError as error:
            return self._failed(error.message, is_refused=error.http_status in SHUT_OUT)
        except Exception:
            log.exception("%s failed, goes on in %.0f s", self._name, FAULT_WAIT_SECONDS)
            return FAULT_WAIT_SECONDS
        self._backoff.reset()
        return wait_seconds

    def _failed(
        self, message: str, *, at_least: float | None = None, is_refused: bool = False
    ) -> float:
        if self._backoff.failures % COMPLAIN_EVERY_FAILURES == 0:
            log.warning("%s: %s", self._name, message)
        return self._backoff.next_seconds(at_least=at_least, is_refused=is_refused)
