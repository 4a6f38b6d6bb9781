"""The series of each sender, which it repeats in every post: parsed, found and named once.

What is remembered is of one sender alone, by its tenant and its appliance or write token.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from access.identity.agent_registry import Agent, WriteGrant
from access.ingest.hosts import Host, host_name
from access.ingest.prometheus.series import (
    NumberedSamples,
    Samples,
    Series,
    SeriesCache,
    SeriesColumn,
    batch_of,
)
from access.ingest.readings import has_mapping
from timeseries.points import Block
from timeseries.series_batch import LabeledSeries, SeriesTable
from timeseries.store import IDENTITY_TAGS

MAX_BYTES = 192 * 1024 * 1024
"""Of all senders together; those that have not sent for the longest time are forgotten first."""
Numbers = NDArray[np.int32]
Sender = Agent | WriteGrant
_UNKNOWN = -1
_LEAST_SIZE = 1024


class SenderSeries:
    """The series of one sender.

    Attributes:
        cache: parsed series by their labels, each with a number.
        table: series as they are stored, with the identity of their appliance.
        host_names: the names of its hosts; of an agent only "", for its own.
    """

    def __init__(self, sender: Sender) -> None:
        self.cache = SeriesCache()
        self.table = SeriesTable()
        self.host_names: list[str] = []
        self._sender = sender
        self._host_numbers: dict[str, int] = {}
        self._host_of = np.full(_LEAST_SIZE, _UNKNOWN, dtype=np.int32)
        self._stored = np.full(_LEAST_SIZE, _UNKNOWN, dtype=np.int32)
        self._is_mapped = np.zeros(_LEAST_SIZE, dtype=np.bool_)
        self._hosts: dict[int, Host] = {}

    def host_of(self, numbers: Numbers) -> Numbers:
        """Return the place in `host_names` of each series, by its number in the cache."""
        self._host_of = _grown(self._host_of, len(self.cache.series))
        self._is_mapped.resize(len(self._host_of), refcheck=False)
        for number in _missing(self._host_of, numbers):
            series = self.cache.series[number]
            name = "" if isinstance(self._sender, Agent) else host_name(series.labels, self._sender)
            host = self._host_numbers.setdefault(name, len(self.host_names))
            if host == len(self.host_names):
                self.host_names.append(name)
            self._host_of[number] = host
            self._is_mapped[number] = has_mapping(series.shape[0])
        return self._host_of[numbers]

    def is_mapped(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return which series may be readings of ours, of those whose host was asked for."""
        return self._is_mapped[numbers]

    def blocks(self, samples: NumberedSamples) -> Sequence[Block]:
        """Return samples as blocks with the names and labels that the sender gave them."""
        series = SeriesColumn(self.cache, samples.numbers)
        return batch_of(Samples(series, samples.values, samples.times_ns)).batch.blocks

    def stored(
        self, numbers: Numbers, hosts: Mapping[int, Host], name_of: Callable[[str, Host], str]
    ) -> Numbers:
        """Return the number in `table` of each series, by its number in the cache.

        Args:
            numbers: series of the hosts.
            hosts: by their place in `host_names`; all have an agent.
            name_of: returns the measurement under which one of a host is stored.
        """
        self._stored = _grown(self._stored, len(self.cache.series))
        for place, host in hosts.items():
            if self._hosts.get(place) != host:
                self._hosts[place] = host
                self._stored[self._host_of[: len(self._stored)] == place] = _UNKNOWN
        for number in _missing(self._stored, numbers):
            host = hosts[int(self._host_of[number])]
            self._stored[number] = self.table.number(
                _labeled(self.cache.series[number], host, name_of)
            )
        return self._stored[numbers]


class SendersSeries:
    """The series of all senders of one kind. For the tasks of one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._senders: OrderedDict[tuple[str, ...], SenderSeries] = OrderedDict()
        self._max_bytes = max_bytes

    def of(self, sender: Sender) -> SenderSeries:
        """Return the series of a sender; once they are too many, it begins anew."""
        key = (
            (sender.tenant_id, sender.appliance_id)
            if isinstance(sender, Agent)
            else (sender.tenant_id, sender.token_id, sender.appliance_pattern)
        )
        series = self._senders.pop(key, None)
        if series is None or series.cache.is_full:
            series = SenderSeries(sender)
        while self._senders and sum(self._bytes()) + series.cache.bytes > self._max_bytes:
            self._senders.popitem(last=False)
        self._senders[key] = series
        return series

    def _bytes(self) -> Iterator[int]:
        return (series.cache.bytes for series in self._senders.values())


def _labeled(series: Series, host: Host, name_of: Callable[[str, Host], str]) -> LabeledSeries:
    """Return a series with the identity of its host instead of what its labels claim."""
    assert host.agent is not None  # noqa: S101 - hosts without one are refused before
    measurement, tags = series.shape
    stored_tags = _with_identity(tags)
    own = series.tag_values
    if len(stored_tags) < len(IDENTITY_TAGS) + len(tags):
        own = tuple(text for tag, text in zip(tags, own, strict=True) if tag not in IDENTITY_TAGS)
    identity = host.agent.tenant_id, host.agent.appliance_id
    return LabeledSeries(name_of(measurement, host), stored_tags, (*identity, *own))


@lru_cache(maxsize=1024)
def _with_identity(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return tags with those of the identity before them, which series of one shape share."""
    return (*IDENTITY_TAGS, *(tag for tag in tags if tag not in IDENTITY_TAGS))


def _missing(entries: Numbers, numbers: Numbers) -> list[int]:
    """Return the numbers that have no entry yet."""
    missing = numbers[entries[numbers] == _UNKNOWN]
    return [int(number) for number in np.unique(missing)] if len(missing) else []


def _grown(array: Numbers, size: int) -> Numbers:
    """Return the array with room for `size` entries: a power of two."""
    if size <= len(array):
        return array
    added = np.full((1 << (size - 1).bit_length()) - len(array), _UNKNOWN, dtype=np.int32)
    return np.concatenate([array, added])
