"""The appliances of hosts whose samples come with a write token.

A token for one appliance says which one. With any other token, each series names its host: by the
tag `host`, else by `instance` without its port, as Prometheus labels what it scrapes. What the
database says of a host is remembered for a minute; when samples arrived is written every few
seconds, for all hosts at once.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv6Address

from sqlalchemy.orm import Session

from access.database import Database
from access.identity.agent_registry import Agent, WriteGrant
from core.clock import Clock
from core.errors import DatabaseUnavailableError
from tenants.fleet.states import WITHOUT_AGENT
from tenants.reporting_hosts import RefusedHostError, claim_host, record_samples
from tenants.write_tokens import covers, is_single

logger = logging.getLogger(__name__)

HOST_TAGS = ("host", "instance")
REMEMBERED_FOR = timedelta(minutes=1)
RECORD_EVERY = timedelta(seconds=5)
MAX_REMEMBERED = 50_000
# Each new host is a transaction.
MAX_LOOKUPS = 200


@dataclass(frozen=True, slots=True)
class Host:
    """A host as the gateway knows it; `agent` is None where its samples are refused.

    Attributes:
        has_agent: an agent sends our metrics of it.
        is_ours: this sender's readings count as ours.
        refusal: why its samples are refused.
    """

    agent: Agent | None = None
    has_agent: bool = False
    is_ours: bool = False
    refusal: str = ""


class Hosts:
    """Finds the hosts of series. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._remembered: dict[tuple[str, str, str], tuple[datetime, Host]] = {}
        self._arrived: tuple[set[str], set[str]] = set(), set()
        self._recorded_at: datetime | None = None
        self._recording: asyncio.Task[None] | None = None

    async def find(
        self, grant: WriteGrant, names: Collection[str], *, program: str
    ) -> Mapping[str, Host]:
        """Return the hosts of some names.

        Args:
            grant: the token that the samples came with.
            names: of the hosts.
            program: what sends.

        Raises:
            DatabaseUnavailableError: a host is not remembered.
        """
        now = self._clock()
        hosts, missing = dict[str, Host](), list[str]()
        for name in names:
            remembered = self._remembered.get((grant.token_id, program, name))
            if remembered is not None and timedelta(0) <= now - remembered[0] < REMEMBERED_FOR:
                hosts[name] = remembered[1]
            elif covers(grant.appliance_pattern, name):
                missing.append(name)
            else:
                reason = (
                    f"the write token is for {grant.appliance_pattern!r}, not for {name[:100]!r}"
                )
                hosts[name] = Host(refusal=reason)
        for name in missing[:MAX_LOOKUPS]:
            hosts[name] = await self._look_up(grant, name, program=program)
        too_many = Host(refusal=f"a request adds at most {MAX_LOOKUPS} hosts; send it again")
        return hosts | dict.fromkeys(missing[MAX_LOOKUPS:], too_many)

    def note(self, grant: WriteGrant, hosts: Collection[Host]) -> None:
        """Note that samples of hosts were stored; only their senders say whether they report."""
        appliance_ids, token_ids = self._arrived
        appliance_ids.update(
            host.agent.appliance_id for host in hosts if host.agent is not None and host.is_ours
        )
        token_ids.add(grant.token_id)
        now = self._clock()
        is_due = self._recorded_at is None or not (
            timedelta(0) <= now - self._recorded_at < RECORD_EVERY
        )
        if is_due and (self._recording is None or self._recording.done()):
            self._recorded_at = now
            self._recording = asyncio.create_task(self._record(now))

    async def _look_up(self, grant: WriteGrant, name: str, *, program: str) -> Host:
        now = self._clock()
        work = partial(_host_of, token_id=grant.token_id, name=name, program=program, now=now)
        try:
            host = await self._database.run(work)
        except RefusedHostError as error:
            host = Host(refusal=error.message)
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[grant.token_id, program, name] = (now, host)
        return host

    async def _record(self, now: datetime) -> None:
        (appliance_ids, token_ids), self._arrived = self._arrived, (set(), set())
        try:
            await self._database.run(
                lambda session: record_samples(session, appliance_ids, token_ids, now=now)
            )
        except DatabaseUnavailableError as error:
            logger.debug("can't record which hosts report, retrying: %s", error)
            self._arrived[0].update(appliance_ids)
            self._arrived[1].update(token_ids)


def host_name(tags: Mapping[str, str], grant: WriteGrant) -> str:
    """Return the host that a series is of; "" if nothing says it."""
    if is_single(grant.appliance_pattern):
        return grant.appliance_pattern
    name = next((tags[tag] for tag in HOST_TAGS if tags.get(tag)), "")
    return _as_name(name if "host" in tags else _without_port(name))


def _without_port(instance: str) -> str:
    """Return the host of a URL or of an address with a port."""
    address = instance.partition("://")[2] or instance
    if address.startswith("["):
        return address[1:].partition("]")[0]
    if address.count(":") > 1 and "/" not in address:
        return address
    return address.partition("/")[0].rpartition(":")[0] or address if ":" in address else address


def _as_name(host: str) -> str:
    """Return a host as the name of an appliance: of IPv6 addresses, colons are hyphens."""
    address = host.partition("%")[0]
    try:
        compressed = IPv6Address(address).compressed
    except ValueError:
        return host
    first, last = ("0" if compressed[end] == ":" else "" for end in (0, -1))
    return f"{first}{compressed}{last}".replace(":", "-")


def _host_of(session: Session, *, token_id: str, name: str, program: str, now: datetime) -> Host:
    appliance, is_ours = claim_host(session, token_id, name=name, program=program, now=now)
    agent = Agent(appliance.id, appliance.tenant_id, appliance.name)
    return Host(agent, has_agent=appliance.state not in WITHOUT_AGENT, is_ours=is_ours)
