"""Samples of any sender: an agent's are its appliance's, those of a write token are sorted by host.

On hosts without an agent, well-known metrics of the first sender are stored as ours, too. Samples
of a write token never mix with an agent's or another sender's: what has the name of one of our
measurements, but not its meaning or its right, is stored with the program's name before it, such as
`telegraf_cpu`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from access.identity.agent_registry import Agent, WriteGrant
from access.ingest.gateway import Gateway, LineError, WriteResult
from access.ingest.hosts import Host, Hosts, host_name
from access.ingest.metrics import REJECTED_POINTS
from access.ingest.readings import Readings, has_mapping
from timeseries.declared import DECLARED
from timeseries.points import Batch, Block
from timeseries.prometheus_names import metric_name

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
Sender = Agent | WriteGrant
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
    is_named_as_ours = block.measurement in DECLARED or not _OURS_IN_PROMQL.isdisjoint(
        metric_name(block.measurement, field) for field in block.fields
    )
    if not is_named_as_ours:
        return block
    if host.is_ours and not has_mapping(block.measurement):
        return block
    return replace(block, measurement=f"{program}_{block.measurement}")


def _result(
    result: WriteResult, refused: Mapping[int, str], *, total: int, ours: int
) -> WriteResult:
    """Return the result of what the sender sent, without our readings of it."""
    errors = [error for error in result.errors if error.line <= total]
    errors += [LineError(position + 1, reason) for position, reason in refused.items()]
    errors.sort(key=lambda error: error.line)
    return replace(result, errors=errors, total=result.total + len(refused) - ours)
