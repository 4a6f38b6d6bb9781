"""Checks the tag `job` of samples: an appliance may use the IDs of jobs that were placed on it.

Charts, reports and rules of a job go by that tag. A value that is not the ID of a job is a tag of
the sender's own, and so is that of a job that was deleted.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from access.database import Database
from access.identity.agent_registry import Agent
from core.clock import Clock
from core.db import chunked
from jobqueue.models import Attempt, Job
from timeseries.points import Batch, Block
from timeseries.store import APPLIANCE_TAG

JOB_TAG = "job"
# A job may be placed on the appliance meanwhile, or be created.
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
        if not wrong:
            return {}
        return {
            position: f"the job {job} did not run on this appliance; leave out the tag 'job'"
            for block in tagged
            for position, job in _positions(block, own, wrong)
        }

    async def _look_up(self, uses: Collection[Use]) -> None:
        now = self._clock()
        if not timedelta(0) <= now - self._since < FORGET_AFTER:
            self._others, self._since = {}, now
        missing = [use for use in uses if use not in self._others]
        if not missing:
            return
        placed, existing = await self._database.run(lambda session: _read(session, missing))
        for use in missing:
            if use in placed:
                self._placed.add(use)
            else:
                self._others[use] = use[1] in existing
        for remembered in (self._placed, self._others):
            if len(remembered) > MAX_REMEMBERED:
                remembered.clear()


def _read(session: Session, uses: Sequence[Use]) -> tuple[set[Use], set[str]]:
    """Return which of some uses are placements, and which IDs are those of jobs."""
    placed: set[Use] = set()
    existing: set[str] = set()
    for ids in chunked({job_id for _, job_id in uses}):
        existing.update(session.scalars(select(Job.id).where(Job.id.in_(ids))))
        rows = select(Attempt.appliance_id, Attempt.job_id).where(Attempt.job_id.in_(ids))
        placed.update((appliance_id, job_id) for appliance_id, job_id in session.execute(rows))
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
