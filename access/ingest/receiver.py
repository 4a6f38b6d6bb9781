"""Samples of any sender: an agent's are its appliance's, those of a write token are sorted by host.

On hosts without an agent, well-known metrics of the first sender are stored as ours, too. Samples
of a write token never mix with an agent's or another sender's: what has the name of one of our
measurements, but not its meaning or its right, is stored with the program's name before it, such as
`telegraf_cpu`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from access.identity.agent_registry import Agent, WriteGrant
from access.ingest.gateway import Gateway, LineError, WriteResult
from access.ingest.hosts import Host, Hosts, host_name
from access.ingest.metrics import REJECTED_POINTS
from access.ingest.prometheus.series import NumberedSamples, Read, SampleBatch
from access.ingest.readings import Readings, has_mapping
from access.ingest.sender_series import Numbers, Sender, SenderSeries
from timeseries.declared import DECLARED
from timeseries.points import Batch, Block, Point
from timeseries.prometheus_names import metric_name
from timeseries.series_batch import VALUE_FIELD, SeriesBatch

TELEGRAF, INFLUX, COLLECTD, PROMETHEUS, OTLP = (
    "telegraf",
    "influx",
    "collectd",
    "prometheus",
    "otlp",
)
# A series gpu_power_watts would look like the field power_watts of our measurement gpu.
_OURS_IN_PROMQL = frozenset(
    metric_name(measurement, field)
    for measurement, declared in DECLARED.items()
    for field in declared.fields
)
_NO_HOST = (
    "nothing says which host it is of; send the tag host, or use a write token for one appliance"
)


class Receiver:
    """Stores samples of agents and of write tokens. For the tasks of one event loop."""

    def __init__(self, gateway: Gateway, hosts: Hosts) -> None:
        self._gateway = gateway
        self._hosts = hosts
        self._readings = Readings()

    async def write(
        self,
        sender: Sender,
        batch: Batch,
        *,
        errors: Mapping[int, str],
        program: str,
        precision: str = "ns",
    ) -> WriteResult:
        """Store a batch; returns when it is durable. Raises as `Gateway.write`.

        Args:
            sender: who sends.
            batch: the valid points.
            errors: position to reason of the invalid ones.
            program: what sends, such as `telegraf`; only of a write token.
            precision: how the sender's times were read, for the error messages.
        """
        if isinstance(sender, Agent):
            return await self._gateway.write([sender], batch, errors=errors, precision=precision)
        await self._gateway.check(sender.tenant_id)
        named = [(block, _host_names(block, sender)) for block in batch.blocks]
        names = sorted({name for _, of_sets in named for name in of_sets if name})
        hosts = await self._hosts.find(sender, names, program=program)
        usable = [name for name in names if hosts[name].agent is not None]
        parts = list(_by_host(named, usable))
        refused = {**errors, **_refused(named, hosts)}
        total = 1 + max([*errors, *(max(block.positions) for block in batch.blocks)], default=-1)
        blocks, sender_of = self._ours(parts, hosts, total=total)
        agents = [agent for name in usable if (agent := hosts[name].agent) is not None]
        index = {name: at for at, name in enumerate(usable)}
        of_position = [0] * total + [index[name] for name in sender_of]
        for name, block in parts:
            for position in block.positions:
                of_position[position] = index[name]
            blocks.append(_renamed(block, hosts[name], program=program))
        # What is refused is of no appliance, so that the gateway learns nothing of it.
        REJECTED_POINTS.inc(len(refused))
        if not agents:
            return _result(WriteResult([], 0), refused, total=total, ours=0)
        result = await self._gateway.write(
            agents,
            Batch(tuple(blocks)),
            errors={},
            precision=precision,
            sender_of=of_position,
        )
        self._hosts.note(sender, [hosts[name] for name in usable])
        return _result(result, refused, total=total, ours=len(sender_of))

    async def write_read(
        self,
        sender: Sender,
        read: Read,
        series: SenderSeries,
        *,
        program: str,
        precision: str = "ns",
    ) -> WriteResult:
        """Store what was read of a request with series that the sender repeats; see `write`."""
        if isinstance(read, SampleBatch):
            return await self.write(
                sender, read.batch, errors=read.errors, program=program, precision=precision
            )
        return await self._write_samples(sender, read, series, program=program, precision=precision)

    async def _write_samples(
        self,
        sender: Sender,
        samples: NumberedSamples,
        series: SenderSeries,
        *,
        program: str,
        precision: str,
    ) -> WriteResult:
        places = series.host_of(samples.numbers)
        if isinstance(sender, Agent):
            numbers = series.stored(
                samples.numbers, {0: Host(sender)}, lambda measurement, _host: measurement
            )
            batch = _series_batch(samples, series, numbers)
            return await self._gateway.write_series(
                [sender], batch, errors=samples.errors, precision=precision
            )
        await self._gateway.check(sender.tenant_id)
        names = {place: series.host_names[place] for place in np.unique(places).tolist()}
        hosts = await self._hosts.find(
            sender, sorted(filter(None, names.values())), program=program
        )
        usable = {
            place: hosts[name]
            for place, name in names.items()
            if name and hosts[name].agent is not None
        }
        reasons = {
            place: hosts[name].refusal if name else _NO_HOST
            for place, name in names.items()
            if place not in usable
        }
        refused = dict(samples.errors)
        if reasons:
            is_usable = np.isin(places, list(usable))
            rows = samples.rows[~is_usable].tolist()
            refused |= {
                row: reasons[place]
                for row, place in zip(rows, places[~is_usable].tolist(), strict=True)
            }
            samples, places = samples.select(is_usable), places[is_usable]
        # What is refused is of no appliance, so that the gateway learns nothing of it.
        REJECTED_POINTS.inc(len(refused))
        if not usable:
            return _result(WriteResult([], 0), refused, total=max(refused, default=-1) + 1, ours=0)
        agents = [host.agent for host in usable.values() if host.agent is not None]
        numbers = series.stored(samples.numbers, usable, partial(_stored_name, program=program))
        batch = _series_batch(samples, series, numbers)
        result = await self._gateway.write_series(agents, batch, errors={}, precision=precision)
        await self._write_ours(samples, places, series, usable)
        self._hosts.note(sender, list(usable.values()))
        return _result(result, refused, total=sys.maxsize, ours=0)

    async def _write_ours(
        self,
        samples: NumberedSamples,
        places: Numbers,
        series: SenderSeries,
        hosts: Mapping[int, Host],
    ) -> None:
        """Store our readings of what some hosts sent."""
        ours = [place for place, host in hosts.items() if host.is_ours]
        is_mapped = series.is_mapped(samples.numbers) & np.isin(places, ours)
        points, agents, sender_of = list[Point](), list[Agent](), list[int]()
        for place in np.unique(places[is_mapped]).tolist():
            agent = hosts[place].agent
            assert agent is not None  # noqa: S101 - hosts without one are refused before
            blocks = series.blocks(samples.select(is_mapped & (places == place)))
            made = self._readings.of_blocks(agent.appliance_id, blocks)
            points += made
            sender_of += [len(agents)] * len(made)
            agents.append(agent)
        if points:
            await self._gateway.write(agents, Batch.of(points), errors={}, sender_of=sender_of)

    def _ours(
        self, parts: Sequence[tuple[str, Block]], hosts: Mapping[str, Host], *, total: int
    ) -> tuple[list[Block], list[str]]:
        """Return our readings, at positions from `total` on, and the host of each."""
        of_host: dict[str, list[Block]] = {}
        for name, block in parts:
            if hosts[name].is_ours and has_mapping(block.measurement):
                of_host.setdefault(name, []).append(block)
        points, sender_of = [], list[str]()
        for name, host_blocks in of_host.items():
            agent = hosts[name].agent
            assert agent is not None  # noqa: S101 - parts are those of usable hosts
            made = self._readings.of_blocks(agent.appliance_id, host_blocks)
            points += made
            sender_of += [name] * len(made)
        return list(Batch.from_positioned(enumerate(points, total)).blocks), sender_of


def _host_names(block: Block, grant: WriteGrant) -> list[str]:
    """Return the host of each tag set of a block."""
    return [
        host_name(dict(zip(block.tags, values, strict=True)), grant) for values in block.tag_sets
    ]


def _by_host(
    named: Sequence[tuple[Block, list[str]]], usable: Sequence[str]
) -> Iterator[tuple[str, Block]]:
    """Yield the parts of blocks that are of one host each."""
    wanted = set(usable)
    for block, names in named:
        distinct = set(names)
        if len(distinct) == 1:
            name = names[0]
            if name in wanted:
                yield name, block
            continue
        rows_of: dict[str, list[int]] = {}
        for row, at in enumerate(block.tag_set_of):
            rows_of.setdefault(names[at], []).append(row)
        for name, rows in rows_of.items():
            if name in wanted:
                yield name, block.select(rows)


def _refused(named: Sequence[tuple[Block, list[str]]], hosts: Mapping[str, Host]) -> dict[int, str]:
    """Return the positions of samples whose host is unknown or refused, with the reason."""
    reasons = {name: host.refusal for name, host in hosts.items() if host.agent is None}
    reasons[""] = _NO_HOST
    return {
        position: reasons[names[at]]
        for block, names in named
        if not reasons.keys().isdisjoint(names)
        for position, at in zip(block.positions, block.tag_set_of, strict=True)
        if names[at] in reasons
    }


def _renamed(block: Block, host: Host, *, program: str) -> Block:
    """Return a block under a name that is not one of ours, unless it is ours."""
    name = _stored_name(block.measurement, host, program=program, fields=block.fields)
    return block if name == block.measurement else replace(block, measurement=name)


def _stored_name(
    measurement: str, host: Host, *, program: str, fields: Sequence[str] = (VALUE_FIELD,)
) -> str:
    """Return the name under which samples of a measurement are stored."""
    is_named_as_ours = measurement in DECLARED or not _OURS_IN_PROMQL.isdisjoint(
        metric_name(measurement, field) for field in fields
    )
    if not is_named_as_ours or (host.is_ours and not has_mapping(measurement)):
        return measurement
    return f"{program}_{measurement}"


def _series_batch(samples: NumberedSamples, series: SenderSeries, numbers: Numbers) -> SeriesBatch:
    return SeriesBatch(series.table, numbers, samples.values, samples.times_ns, samples.rows)


def _result(
    result: WriteResult, refused: Mapping[int, str], *, total: int, ours: int
) -> WriteResult:
    """Return the result of what the sender sent, without our readings of it."""
    errors = [error for error in result.errors if error.line <= total]
    errors += [LineError(position + 1, reason) for position, reason in refused.items()]
    errors.sort(key=lambda error: error.line)
    return replace(result, errors=errors, total=result.total + len(refused) - ours)
