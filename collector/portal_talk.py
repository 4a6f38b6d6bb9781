"""What an enrolled agent says to its portal beside samples, each in a thread of its own.

heartbeat   alive, with inventory and health
desired     long poll: what should run here?
attempts    executor <- desired state; observations and logs -> portal
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event

from collector.config import AgentConfig
from collector.heartbeats import Heartbeats
from collector.jobs.attempts import AttemptRunner
from collector.loops import Loop
from collector.samples import SampleFlow
from collector.sending.link import PortalLink
from core.clock import Clock

OFFLINE_WAIT_SECONDS = 1.0
NO_NEWS_WAIT_SECONDS = 1.0


class PortalTalk:
    """Heartbeats, and attempts where there is something to run them.

    Args:
        open_link: gives a connection for one thread.
        config: gives the configuration of the moment.
        is_offline: whether a simulated appliance is in one of its outages.
    """

    def __init__(
        self,
        open_link: Callable[[], PortalLink],
        *,
        config: Callable[[], AgentConfig],
        heartbeats: Heartbeats,
        runner: AttemptRunner | None,
        samples: SampleFlow,
        is_offline: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._open_link = open_link
        self._config = config
        self._heartbeats = heartbeats
        self._runner = runner
        self._samples = samples
        self._is_offline = is_offline
        self._clock = clock
        self._usage_due_at: datetime | None = None

    def loops(self, stop: Event) -> list[Loop]:
        """Return the loops, not started yet."""
        beats = self._open_link()
        loops = [Loop("heartbeat", lambda: self._beat(beats), stop=stop, at_end=beats.close)]
        if (runner := self._runner) is not None:
            loops += self._attempt_loops(runner, stop)
        return loops

    def _attempt_loops(self, runner: AttemptRunner, stop: Event) -> list[Loop]:
        attempts, polls = self._open_link(), self._open_link()
        return [
            Loop(
                "attempts",
                lambda: self._run_attempts(runner, attempts),
                stop=stop,
                at_end=attempts.close,
            ),
            Loop(
                "desired",
                lambda: self._poll(runner, polls),
                stop=stop,
                at_end=polls.close,
                is_polling=True,
            ),
        ]

    def _beat(self, link: PortalLink) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        interval_seconds = self._config().heartbeat_interval_seconds
        return self._heartbeats.step(link, interval_seconds=interval_seconds)

    def _poll(self, runner: AttemptRunner, link: PortalLink) -> float:
        if self._is_offline():
            return OFFLINE_WAIT_SECONDS
        asked_at, generation = time.monotonic(), runner.generation
        desired = link.desired(generation, wait_seconds=self._config().poll_wait_seconds)
        if desired is not None:
            runner.take_desired(desired)
        is_news = runner.generation != generation
        was_held = time.monotonic() - asked_at >= NO_NEWS_WAIT_SECONDS
        return 0.0 if is_news or was_held else NO_NEWS_WAIT_SECONDS

    def _run_attempts(self, runner: AttemptRunner, link: PortalLink) -> float:
        runner.step()
        self._add_usage(runner, self._clock())
        if not self._is_offline():
            # The output goes first: who reads that an attempt has ended can read its last line.
            runner.ship_logs(link)
            runner.report(link, self._clock())
        return self._config().attempts_interval_seconds

    def _add_usage(self, runner: AttemptRunner, now: datetime) -> None:
        interval = timedelta(seconds=self._config().interval_seconds)
        due_at = self._usage_due_at
        if due_at is None or not now < due_at <= now + interval:
            self._usage_due_at = now + interval
            self._samples.add(runner.usage_points(now))
