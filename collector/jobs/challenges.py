"""Challenges of this appliance's hardware, which give way to jobs."""

import logging
import time
from collections.abc import Callable
from threading import Thread

import msgspec

from collector.sending.transfer import PortalTransfer
from jobqueue.executors.base import Challenges
from plugins.base import PluginError
from protocol.challenges import ChallengeOrder, ChallengeResult

log = logging.getLogger(__name__)

Connect = Callable[[], PortalTransfer]


class ChallengeRuns:
    """Runs ordered challenges in the background, one at a time.

    The result stays in memory: an agent that is started again before it reported runs it again.

    Args:
        challenges: of the executor; None if it has none.
        connect: returns a connection for transfers to the portal; None without a portal.
        wake: called when there is a result.
    """

    def __init__(
        self, challenges: Challenges | None, *, connect: Connect | None, wake: Callable[[], object]
    ) -> None:
        self._challenges = challenges
        self._connect = connect
        self._wake = wake
        self._thread: Thread | None = None
        # Of an agent that was killed, which may still have the GPUs.
        self._is_left_behind = True
        self._result: ChallengeResult | None = None

    def result_of(self, order: ChallengeOrder | None) -> ChallengeResult | None:
        """Return the result of an order, if there is one."""
        result = self._result
        return result if order and result and result.number == order.number else None

    def follow(self, order: ChallengeOrder | None, *, has_attempts: bool) -> None:
        """Start what is ordered; with attempts, end what runs and return once its GPUs are free.

        What an agent that was killed has left running ends, too.
        """
        challenges, thread = self._challenges, self._thread
        is_running = thread is not None and thread.is_alive()
        if challenges is None:
            return
        if has_attempts or order is None:
            if is_running or self._is_left_behind:
                challenges.cancel()
                self._is_left_behind = False
        elif not is_running and self.result_of(order) is None:
            self._thread = Thread(
                target=self._run, args=(challenges, order), name="challenge", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End what runs."""
        self.follow(None, has_attempts=False)

    def _run(self, challenges: Challenges, order: ChallengeOrder) -> None:
        log.info("challenge %d of %d GPUs", order.number, len(order.gpu_uuids))
        result = challenges.run(order)
        if self._connect is not None and result.answer is not None and order.network_bytes:
            received, sent = _rates(self._connect(), order.network_bytes)
            result = msgspec.structs.replace(
                result, received_bytes_per_second=received, sent_bytes_per_second=sent
            )
        problem = "a job came" if result.is_interrupted else result.problem
        log.info("challenge %d: %s", order.number, problem or "answered")
        self._result = result
        self._wake()


def _rates(transfer: PortalTransfer, size: int) -> tuple[float, float]:
    """Return bytes per second received and sent; 0 where it fails."""
    rates = []
    try:
        for move in (transfer.download, transfer.upload):
            began = time.monotonic()
            try:
                move(size)
            except PluginError as error:
                log.info("%s", error)
                rates.append(0.0)
            else:
                rates.append(size / max(time.monotonic() - began, 1e-6))
    finally:
        transfer.close()
    return rates[0], rates[1]
