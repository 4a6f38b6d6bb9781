"""Counts numbered samples in the store: each number of each start of a source must be there once.

The last numbers of a source that is killed with its agent may never have reached the agent's disk:
the agent writes what it has read every `flush_interval_seconds`. Its buffer says which it has.
"""

import json
import re
import time
from collections import Counter
from dataclasses import dataclass

import requests

from collector.buffering.frames import decode_frame, scan
from tests.failures.site import Site

_NUMBER = re.compile(rb"^collectd_failures,\S*type_instance=(\d+)\S* value=(\d+)", re.MULTILINE)
# Two readings, and what was read but not written.
IN_MEMORY = 4
Start = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Losses:
    """What is missing in the store, and what is there more than once."""

    lost: int
    doubled: int
    stored: int


class SampleLedger:
    """Knows which samples must be in the store."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # The highest number that must be there, by agent and start.
        self._expected: dict[Start, int] = {}
        self._counted = Losses(0, 0, 0)

    def note_present(self) -> None:
        """Expect all samples that the sources have written until now."""
        for name, (start, number) in self._site.agents.counts().items():
            self._expected[name, start] = number

    def note_killed(self, names: list[str]) -> None:
        """Expect of agents that were killed what is on their disks, and not what was in memory."""
        for name in names:
            on_disk = self._numbers_on_disk(name)
            start = max(start for agent, start in self._expected if agent == name)
            before = self._expected[name, start] - IN_MEMORY
            self._expected[name, start] = max(before, on_disk.get(start, 0))

    def is_complete(self) -> bool:
        """Return whether nothing has been lost since the last count."""
        return self._losses().lost <= self._counted.lost

    def count(self) -> Losses:
        """Return what was lost and doubled since the last count, and what is stored."""
        losses, before = self._losses(), self._counted
        self._counted = losses
        return Losses(losses.lost - before.lost, losses.doubled - before.doubled, losses.stored)

    def _losses(self) -> Losses:
        stored = self._stored()
        lost = sum(
            number + 1 - sum(1 for there in stored.get(start, {}) if there <= number)
            for start, number in self._expected.items()
        )
        doubled = sum(times - 1 for numbers in stored.values() for times in numbers.values())
        return Losses(lost, doubled, sum(map(len, stored.values())))

    def _stored(self) -> dict[Start, Counter[int]]:
        """Return how often the store has each number of each start."""
        # Clocks that jump ahead make samples of the future.
        query = {
            "match[]": '{__name__="collectd_failures_value"}',
            "start": "0",
            "end": str(time.time() + 86_400),
        }
        answer = requests.get(f"{self._site.store_url}/api/v1/export", query, timeout=60)
        answer.raise_for_status()
        names = self._site.agents.names_by_id()
        stored: dict[Start, Counter[int]] = {}
        for line in answer.text.splitlines():
            series = json.loads(line)
            labels = series["metric"]
            start = names[labels["appliance"]], labels["type_instance"]
            stored.setdefault(start, Counter()).update(map(int, series["values"]))
        return stored

    def _numbers_on_disk(self, name: str) -> dict[str, int]:
        """Return the highest number of each start in an agent's buffer, acknowledged or not."""
        numbers: dict[str, int] = {}
        for path in sorted((self._site.agents.homes[name] / "buffer").glob("*.seg")):
            content = path.read_bytes()
            for extent in scan(content):
                decoded = decode_frame(content, extent.start)
                for start, number in _NUMBER.findall(decoded[0].payload if decoded else b""):
                    key = start.decode()
                    numbers[key] = max(numbers.get(key, 0), int(number))
        return numbers
