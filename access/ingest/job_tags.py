"""Checks the tag `job` of samples: an appliance may use the IDs of jobs that were placed on it.

Charts, reports and rules of a job go by that tag. A value that is not the ID of a job is a tag of
the sender's own, and so is that of a job that was deleted. Samples of a job that rents the
appliance are routed to its tenant; see `access.ingest.rented_samples`.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from access.database import Database
from access.identity.agent_registry import Agent
from access.ingest.rented_samples import JOB_TAG, RentedUse, Routed, route
from access.ingest.rented_samples import rejected as untimely
from core.clock import Clock
from core.db import chunked
from jobqueue.models import Attempt, Job
from timeseries.points import Batch, Block
from timeseries.store import APPLIANCE_TAG

# A job may be placed on the appliance meanwhile, be created, or end there.
FORGET_AFTER = timedelta(minutes=1)
MAX_REMEMBERED = 100_000
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Use = tuple[str, str]
"""An appliance, and the ID in the tag of its samples."""


class JobTags:
    """Remembers what the database says of IDs. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._placed: set[Use] = set()
        self._others: dict[Use, bool] = {}
        """The uses since `_since` that are no placement, and whether each is rejected."""
        self._rented: dict[Use, RentedUse] = {}
        """The uses since `_since` of jobs that rent their appliance; they are in no other set."""
        self._rented_appliances: set[str] = set()
        self._since: datetime = clock()

    async def rejected(self, batch: Batch, agents: Sequence[Agent]) -> dict[int, str]:
        """Return the positions of points with the job of another appliance, and the reason.

        Args:
            batch: points of one agent, or stamped ones of several.
            agents: the senders.
        """
        tagged = [block for block in batch.blocks if JOB_TAG in block.tags]
        if not tagged:
            return {}
        own = "" if batch.is_stamped else agents[0].appliance_id
        uses = {use for block in tagged for use in _uses(block, own)}
        unknown = {use for use in uses - self._placed if _ID.fullmatch(use[1])}
        if unknown:
            await self._look_up(unknown)
        wrong = {use for use in unknown if self._others.get(use)}
        reasons = {
            position: f"the job {job} did not run on this appliance; leave out the tag 'job'"
            for block in tagged
            for position, job in (_positions(block, own, wrong) if wrong else ())
        }
        if not self._rented.keys().isdisjoint(unknown):
            for block in tagged:
                for position in untimely(block, self._rented_of(block, own)):
                    reasons[position] = "its job did not run at this time; leave out the tag 'job'"
        return reasons

    def routed(self, batch: Batch, agents: Sequence[Agent]) -> Routed | None:
        """Return where a batch goes whose tags were checked; None if it is the senders' alone.

        Without rented jobs this is one comparison for each sender.
        """
        appliances = self._rented_appliances
        if not appliances or appliances.isdisjoint(agent.appliance_id for agent in agents):
            return None
        own = "" if batch.is_stamped else agents[0].appliance_id
        uses_of = [self._rented_of(block, own) for block in batch.blocks]
        return route(batch, uses_of) if any(uses_of) else None

    def _rented_of(self, block: Block, own: str) -> dict[int, RentedUse]:
        """Return the uses of a block's tag sets that are of rented jobs, by their number."""
        if JOB_TAG not in block.tags:
            return {}
        return {
            number: rented
            for number, use in enumerate(_uses(block, own))
            if (rented := self._rented.get(use)) is not None
        }

    async def _look_up(self, uses: Collection[Use]) -> None:
        now = self._clock()
        if not timedelta(0) <= now - self._since < FORGET_AFTER:
            self._others, self._since = {}, now
            self._rented, self._rented_appliances = {}, set()
        missing = [use for use in uses if use not in self._others and use not in self._rented]
        if not missing:
            return
        placed, existing = await self._database.run(lambda session: _read(session, missing))
        for use in missing:
            if use not in placed:
                self._others[use] = use[1] in existing
            elif (rented := placed[use]) is not None:
                self._rented[use] = rented
                self._rented_appliances.add(use[0])
            else:
                self._placed.add(use)
        for remembered in (self._placed, self._others):
            if len(remembered) > MAX_REMEMBERED:
                remembered.clear()


def _read(session: Session, uses: Sequence[Use]) -> tuple[dict[Use, RentedUse | None], set[str]]:
    """Return which of some uses are placements, the rented ones, and which IDs are of jobs."""
    placed: dict[Use, RentedUse | None] = {}
    existing: set[str] = set()
    columns = (Attempt.appliance_id, Attempt.job_id, Attempt.tenant_id, Attempt.contract_id)
    times = (func.coalesce(Attempt.assigned_at, Attempt.bound_at), Attempt.finished_at)
    for ids in chunked({job_id for _, job_id in uses}):
        existing.update(session.scalars(select(Job.id).where(Job.id.in_(ids))))
        rows = select(*columns, *times).where(Attempt.job_id.in_(ids)).order_by(Attempt.number)
        for appliance_id, job_id, tenant_id, contract_id, since, until in session.execute(rows):
            use = (appliance_id, job_id)
            if contract_id is None:
                placed.setdefault(use, None)
                continue
            rented, before = RentedUse.of((tenant_id, contract_id), since, until), placed.get(use)
            placed[use] = rented if before is None else before | rented
    return placed, existing


def _uses(block: Block, own: str) -> Iterator[Use]:
    """Yield the use of each tag set; `own` is the appliance of a batch that is not stamped."""
    job_at = block.tags.index(JOB_TAG)
    if own:
        return ((own, tag_set[job_at]) for tag_set in block.tag_sets)
    appliance_at = block.tags.index(APPLIANCE_TAG)
    return ((tag_set[appliance_at], tag_set[job_at]) for tag_set in block.tag_sets)


def _positions(block: Block, own: str, wrong: set[Use]) -> Iterator[tuple[int, str]]:
    uses = list(_uses(block, own))
    if wrong.isdisjoint(uses):
        return
    for position, number in zip(block.positions, block.tag_set_of, strict=True):
        if uses[number] in wrong:
            yield position, uses[number][1]
