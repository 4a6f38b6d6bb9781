"""Whether this server can do its work: each check has a name and tells what is wrong."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anyio import CapacityLimiter, move_on_after, to_thread

from core.errors import VedetteError

CACHE_SECONDS = 1.0
CHECK_SECONDS = 5.0
Probe = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong, by the name of the check: `faults` prevent work, `warnings` will."""

    faults: Mapping[str, str]
    warnings: Mapping[str, str]


class Readiness:
    """Makes the checks; anybody may ask, as often as they like, so a report holds for a second.

    Args:
        required: the server is not ready if one of these fails.
        watched: a failure of these is only reported. If all servers of a portal were taken out of
            service because nobody has the scheduler's lease, that would be worse.
    """

    def __init__(self, required: Mapping[str, Probe], watched: Mapping[str, Probe]) -> None:
        self._required = required
        self._watched = watched
        # One that hangs takes one thread, and none from the others.
        self._limiters = {name: CapacityLimiter(1) for name in (*required, *watched)}
        self._checking = asyncio.Lock()
        self._checked_at = -math.inf
        self._report = Report({}, {})

    async def report(self) -> Report:
        """Return what is wrong."""
        async with self._checking:
            if time.monotonic() >= self._checked_at + CACHE_SECONDS:
                faults, warnings = await asyncio.gather(
                    self._failures(self._required), self._failures(self._watched)
                )
                # What depends on the database says nothing new while that is away.
                self._report = Report(faults, warnings if "database" not in faults else {})
                self._checked_at = time.monotonic()
        return self._report

    async def _failures(self, probes: Mapping[str, Probe]) -> dict[str, str]:
        messages = await asyncio.gather(*map(self._failure, probes, probes.values()))
        return {name: message for name, message in zip(probes, messages, strict=True) if message}

    async def _failure(self, name: str, probe: Probe) -> str:
        with move_on_after(CHECK_SECONDS):
            try:
                await to_thread.run_sync(
                    probe, limiter=self._limiters[name], abandon_on_cancel=True
                )
            except VedetteError as error:
                return error.message
            except Exception as error:  # noqa: BLE001 - reported to whoever asks
                return f"{type(error).__name__}: {error}"
            return ""
        return f"It did not answer within {CHECK_SECONDS:.0f} s."
