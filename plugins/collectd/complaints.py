"""What is wrong with readings of others, logged so that a flood of it does not flood the log."""

import logging
import time

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 60.0


class Complaints:
    """Counts faults and logs the first of them and their number, at most once a minute.

    Args:
        subject: whose readings they are, as the log shows it.
        unit: what is counted when something is dropped, such as `bytes`.
    """

    def __init__(self, subject: str, *, unit: str) -> None:
        self._subject = subject
        self._unit = unit
        self._faults = 0
        self._first = ""
        self._dropped = 0
        self._logged_at_seconds: float | None = None  # by the monotonic clock

    def note(self, reason: str) -> None:
        """Count a reading that is no good."""
        self._faults += 1
        self._first = self._first or reason

    def drop(self, count: int) -> None:
        """Count what was thrown away unread."""
        self._dropped += count

    def flush(self) -> None:
        """Log what has come together, if it is time."""
        if not self._faults and not self._dropped:
            return
        seconds, last = time.monotonic(), self._logged_at_seconds
        if last is not None and seconds - last < SECONDS_BETWEEN:
            return
        if self._faults:
            log.warning("%s: %d bad readings; first %s", self._subject, self._faults, self._first)
        if self._dropped:
            log.warning(
                "%s: dropped %d %s, more than is taken at a time",
                self._subject,
                self._dropped,
                self._unit,
            )
        self._faults, self._first, self._dropped = 0, "", 0
        self._logged_at_seconds = seconds
