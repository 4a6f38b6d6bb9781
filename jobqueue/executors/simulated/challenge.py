"""Challenges of a simulated appliance: it computes the walks without the memory.

So it takes only small ones, which the portal orders of simulated appliances.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import Event

import msgspec

from core.clock import Clock, to_ns
from protocol.challenge_walk import (
    BLOCK_WORDS,
    WORD_BYTES,
    opened,
    path_of,
    tree,
    walk,
    word_at,
)
from protocol.challenges import (
    CPU,
    ChallengeAnswer,
    ChallengeOrder,
    ChallengeResult,
    DeviceAnswer,
    Opening,
)

# Reads of words, for a GPU.
MAX_READS = 2**12
NO_GPU = "There is no such GPU in the container."
Devices = Callable[[], Sequence[DeviceAnswer]]
"""Returns the GPUs with what their driver and measurements say; the rest is computed."""


class SimulatedChallenges:
    """Answers challenges for the GPUs of a simulation.

    Args:
        clock: the appliance's time.
        devices: its GPUs.
        on_start, on_end: called with an order while its GPUs are busy.
    """

    def __init__(
        self,
        clock: Clock,
        devices: Devices = list,
        *,
        on_start: Callable[[ChallengeOrder], object] = lambda _: None,
        on_end: Callable[[ChallengeOrder], object] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._devices = devices
        self._on_start = on_start
        self._on_end = on_end
        self._cancelled = Event()

    def run(self, order: ChallengeOrder) -> ChallengeResult:
        """Compute the answer; takes as long as the order keeps GPUs busy."""
        self._cancelled.clear()
        if order.leaves * order.steps > MAX_READS:
            problem = "The challenge is too large for a simulated appliance."
            return ChallengeResult(number=order.number, problem=problem)
        began = time.monotonic()
        self._on_start(order)
        try:
            answers = [self.answer(order, DeviceAnswer(uuid=CPU), words=order.cpu_words)]
            devices = {device.uuid: device for device in self._devices()}
            answers += [
                self.answer(order, devices[uuid])
                if uuid in devices
                else DeviceAnswer(uuid=uuid, problem=NO_GPU)
                for uuid in order.gpu_uuids
            ]
            self._cancelled.wait(order.busy_seconds if order.gpu_uuids else 0)
        finally:
            self._on_end(order)
        if self._cancelled.is_set():
            return ChallengeResult(number=order.number, is_interrupted=True)
        return ChallengeResult(
            number=order.number,
            answer=ChallengeAnswer(
                devices=answers,
                disk_written_bytes_per_second=2.1e9,
                disk_read_bytes_per_second=4.8e9,
                seconds=time.monotonic() - began,
                clock_ns=to_ns(self._clock()),
            ),
        )

    def cancel(self) -> None:
        """End the one that runs."""
        self._cancelled.set()

    def answer(
        self, order: ChallengeOrder, device: DeviceAnswer, *, words: int | None = None
    ) -> DeviceAnswer:
        """Return the answer of a device with so many words, by default those of its memory."""
        if words is None:
            size = device.memory_bytes * order.memory_percent // 100
            words = size // (BLOCK_WORDS * WORD_BYTES) * BLOCK_WORDS
        leaves = order.cpu_leaves if device.uuid == CPU else order.leaves
        ends = _ends(order.seed, rounds=order.rounds, steps=order.steps, leaves=leaves, words=words)
        levels = tree(ends)
        root = levels[-1][0].hex()
        return msgspec.structs.replace(
            device,
            words=words,
            root=root,
            openings=[
                Opening(leaf=leaf, value=ends[leaf], path=path_of(levels, leaf))
                for leaf in opened(order.seed, root, leaves=leaves, count=order.openings)
            ],
        )


@lru_cache(maxsize=2)
def _ends(seed: int, *, rounds: int, steps: int, leaves: int, words: int) -> list[int]:
    """Return the ends of all walks, which are the same for GPUs with as much memory."""
    read = partial(word_at, seed, rounds=rounds)
    return [walk(seed, leaf, steps=steps, words=words, read=read) for leaf in range(leaves)]
