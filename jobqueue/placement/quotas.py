"""Quotas of projects while a plan grows: what may start, and whose jobs may stop for it.

The projects of a tenant lend each other what they leave idle. Within its *guarantee* a project may
always start jobs, and *reclaim* what others borrow. Above it a project *borrows*, up to its maximum
and its borrowing limit, but never what others *keep back*: the part of an unused guarantee that
they don't lend. A job counts towards its project and all those above it.

Source: Kueue's cohorts (nominal quota, lending and borrowing limits, reclaim within the cohort).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.views import (
    JobView,
    ProjectView,
    QuotaView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import QuotaKey
from jobqueue.projects.models import QuotaResource
from protocol.gpu_slices import WHOLE_GPU
from tenants.models import ApplianceState

Amounts = Mapping[QuotaKey, float]
_CPUS, _MEMORY = QuotaKey(QuotaResource.CPUS), QuotaKey(QuotaResource.MEMORY_BYTES)
# Jobs without a project count as one project, besides towards the whole tenant.
_NO_PROJECT, _TENANT = "", None


class Use(NamedTuple):
    """What a job uses of what quotas count, for its project."""

    project_id: str | None = None
    amounts: Amounts = MappingProxyType({})


NOTHING = Use()


class Verdict(NamedTuple):
    """Whether a job may start by quotas.

    Attributes:
        job: the job, limited to the GPU models that it may use.
        refusal: why it may not start, in a sentence; "" if it may.
        guaranteed: the job, limited to the models that a guarantee covers; None if it would borrow.
        guarantor: the topmost project whose guarantee covers it.
        use: what it would use then.
    """

    job: JobView
    refusal: str = ""
    guaranteed: JobView | None = None
    guarantor: str = ""
    use: Use = NOTHING


class Quotas:
    """The use of resources by projects; all is allowed where no project has quotas."""

    def __init__(self, snapshot: Snapshot, models: Iterable[str]) -> None:
        self._projects = {project.id: project for project in snapshot.projects}
        self._children: dict[str | None, list[str]] = defaultdict(list)
        self._rows: dict[tuple[str, QuotaKey], QuotaView] = {}
        for project in snapshot.projects:
            self._children[project.parent_id].append(project.id)
            self._rows |= {(project.id, quota.key): quota for quota in project.quotas}
        self._keys = {key for _, key in self._rows}
        self._models = {
            model: frozenset(key for key in self._keys if key.covers(model))
            for model in (models if self._keys else ())
        }
        self._used: dict[tuple[str | None, QuotaKey], float] = defaultdict(float)
        self._staying: dict[tuple[str | None, QuotaKey], float] = defaultdict(float)
        self._idle: dict[QuotaKey, float] = defaultdict(float)
        self._is_kept_back = any(row.lending_limit is not None for row in self._rows.values())
        self.has_guarantees = any(row.guaranteed for row in self._rows.values())

    def measure_idle(self, ledger: Ledger) -> None:
        """Take what is idle on the own appliances that accept jobs from the ledger."""
        is_open = ledger.executes & ~(ledger.drained | ledger.quarantined | ledger.failed)
        is_open &= ~ledger.is_rented
        is_open &= ledger.states == ApplianceState.ONLINE.value
        for key in self._keys:
            models = [model for model, keys in self._models.items() if key in keys]
            self._idle[key] = ledger.free_gpus(models, is_open)
        self._idle |= {
            _CPUS: float(np.sum(ledger.cpus_free[is_open])),
            _MEMORY: float(np.sum(ledger.memory_free[is_open])),
        }

    def use_of(self, job: JobView | RunningJob, models: Sequence[str]) -> Use:
        """Return what a job uses with GPUs of these models."""
        if not self._keys:
            return NOTHING
        amounts: dict[QuotaKey, float] = defaultdict(float)
        for model in models:
            for key in self._models[model]:
                amounts[key] += job.gpu_milli / WHOLE_GPU
        amounts |= {_CPUS: job.cpus, _MEMORY: float(job.memory_bytes)}
        return Use(job.project_id, {key: amounts[key] for key in self._keys if amounts[key]})

    def count(self, use: Use, *, sign: int = 1, is_stopping: bool = False) -> None:
        """Add what a job uses to its projects, or take it back; what is idle changes with it."""
        for key, amount in use.amounts.items():
            self._idle[key] -= sign * amount
            for node in self._nodes(use.project_id):
                self._used[node, key] += sign * amount
                self._staying[node, key] += 0 if is_stopping else sign * amount

    def stop(self, use: Use) -> None:
        """Note that a running job stops: its projects are about to use so much less."""
        for key, amount in use.amounts.items():
            for node in self._nodes(use.project_id):
                self._staying[node, key] -= amount

    def check(self, job: JobView) -> Verdict:
        """Return whether a job may start now, by the quotas of its project and of others."""
        if not self._keys:
            return Verdict(job)
        by_keys: dict[frozenset[QuotaKey], list[str]] = defaultdict(list)
        for model, keys in self._models.items() if job.gpus else ():
            if not job.gpu_models or model in job.gpu_models:
                by_keys[keys].append(model)
        verdicts = [self._check(job, models) for models in by_keys.values()]
        allowed = [verdict for verdict in verdicts if not verdict.refusal]
        if not verdicts:
            return self._check(job, ())
        if not allowed:
            return verdicts[0]
        covered = next((verdict for verdict in allowed if verdict.guaranteed), allowed[0])
        if len(allowed) == len(verdicts):
            return covered._replace(job=job)
        usable = frozenset[str]().union(*(verdict.job.gpu_models for verdict in allowed))
        return covered._replace(job=replace(job, gpu_models=usable))

    def guaranteed_first(self, jobs: Iterable[JobView]) -> list[JobView]:
        """Return those of the jobs, in their order, that guarantees cover together."""
        covered: list[JobView] = []
        uses: list[Use] = []
        for job in jobs if self.has_guarantees else ():
            verdict = self.check(job.whole)
            if verdict.guaranteed is not None and not verdict.refusal:
                covered.append(job)
                uses.append(verdict.use)
                self.count(verdict.use)
        for use in uses:
            self.count(use, sign=-1)
        return covered

    def may_stop(self, job: JobView, guarantor: str, uses: Sequence[Use]) -> bool:
        """Return whether running jobs may stop for another one together.

        Their projects stay at or above their guarantees, except the job's own and those above it.
        For the guarantee of a project, none of those in or below it stops.
        """
        own = {project.id for project in self._path(job.project_id)}
        lost: dict[tuple[str, QuotaKey], float] = defaultdict(float)
        for use in uses:
            path = [project.id for project in self._path(use.project_id)]
            if guarantor and guarantor in path:
                return False
            for node in path:
                for key, amount in use.amounts.items() if node not in own else ():
                    lost[node, key] += amount
        return all(
            self._staying[place] - amount >= self._rows[place].guaranteed - CPU_TOLERANCE
            for place, amount in lost.items()
            if place in self._rows
        )

    def relative_use(
        self, job: JobView, use: Use, wanted: Use, stopping: Sequence[Use] = ()
    ) -> float:
        """Return what the project of a running job uses for each of its shares.

        It is the project that is beside that of the waiting job, or the one above it. What counts
        is the resource that the waiting job wants: GPUs before others. Jobs that are `stopping`
        are left out.
        """
        own = {project.id for project in self._path(job.project_id)}
        beside = [project for project in self._path(use.project_id) if project.id not in own]
        node, shares = (beside[-1].id, beside[-1].shares) if beside else (_NO_PROJECT, 1)
        key = _first_key(wanted)
        amount = self._staying[node, key]
        for other in stopping:
            if node in self._nodes(other.project_id):
                amount -= other.amounts.get(key, 0.0)
        return amount / shares

    def name_of(self, project_id: str | None) -> str:
        """Return the name of a project; "" for none."""
        project = self._projects.get(project_id or "")
        return "" if project is None else project.name

    def borrowers(self, verdict: Verdict) -> str:
        """Return who uses more than their guarantees of what a job is guaranteed, with figures."""
        own = {project.id for project in self._path(verdict.job.project_id)}
        key = _first_key(verdict.use)
        parts = []
        for project in self._projects.values():
            row = self._rows.get((project.id, key))
            amount = self._staying[project.id, key] - (row.guaranteed if row else 0)
            if project.id not in own and amount > CPU_TOLERANCE:
                parts.append(f"Project {project.name!r} borrows {key.amount(amount)}")
        if self._staying[_NO_PROJECT, key]:
            amount = self._staying[_NO_PROJECT, key]
            parts.append(f"Jobs without a project use {key.amount(amount)}")
        return "; ".join(parts)

    def _check(self, job: JobView, models: Sequence[str]) -> Verdict:
        """Return the verdict for GPUs of some models that the same quotas count."""
        use = self.use_of(job, [*models[:1]] * job.gpus)
        limited = replace(job, gpu_models=frozenset(models)) if models else job
        path, covers, is_covered = self._path(job.project_id), [0], False
        for key, amount in use.amounts.items():
            cover = self._cover(path, key, amount)
            refusal = self._above_limit(path, key, amount)
            refusal = refusal or self._kept_back(path, key, amount, cover)
            if refusal:
                return Verdict(limited, refusal)
            if any(row.guaranteed for row in self._rows_of(path, key)):
                is_covered = True
                covers.append(len(path) if cover is None else cover)
        if not is_covered or max(covers) == len(path):
            return Verdict(limited)
        return Verdict(limited, "", limited, path[max(covers)].id, use)

    def _cover(self, path: Sequence[ProjectView], key: QuotaKey, amount: float) -> int | None:
        """Return the place in a path of the first project whose guarantee covers an amount."""
        for place, project in enumerate(path):
            row = self._rows.get((project.id, key))
            used = self._used[project.id, key]
            if row is not None and used + amount <= row.guaranteed + CPU_TOLERANCE:
                return place
        return None

    def _above_limit(self, path: Sequence[ProjectView], key: QuotaKey, amount: float) -> str:
        for project in path:
            row = self._rows.get((project.id, key))
            if row is None:
                continue
            used, requested = self._used[project.id, key], f"and this job requests {amount:g}"
            if key == _MEMORY:
                requested = f"and this job requests {key.amount(amount)}"
            if row.maximum is not None and used + amount > row.maximum + CPU_TOLERANCE:
                of_maximum = f"of its maximum of {key.amount(row.maximum)}"
                return (
                    f"Project {project.name!r} uses {_figure(key, used)} {of_maximum}, {requested}."
                )
            borrowing = row.borrowing_limit
            if borrowing is not None and used + amount > row.guaranteed + borrowing + CPU_TOLERANCE:
                return (
                    f"Project {project.name!r} uses {key.amount(used)}. It is guaranteed "
                    f"{_figure(key, row.guaranteed)} and may borrow {_figure(key, borrowing)}, "
                    f"{requested}."
                )
        return ""

    def _kept_back(
        self, path: Sequence[ProjectView], key: QuotaKey, amount: float, cover: int | None
    ) -> str:
        """Return what others keep back of what an amount would be taken from, as a refusal."""
        if not self._is_kept_back:
            return ""
        levels = path if cover is None else path[: cover + 1]
        nodes: list[str | None] = [project.id for project in levels]
        pool, left = self._idle[key], "idle"
        if cover is None:
            nodes.append(_TENANT)
        else:
            owner = path[cover]
            pool = self._rows[owner.id, key].guaranteed - self._used[owner.id, key]
            left = f"of the guarantee of {owner.name!r}"
        on_path = {project.id for project in path}
        keeping = {
            child: amount_kept
            for node in nodes
            for child in self._children[node]
            if child not in on_path and (amount_kept := self._kept_by(child, key))
        }
        total = sum(keeping.values())
        if not total or pool - amount >= total - CPU_TOLERANCE:
            return ""
        names = ", ".join(repr(self._projects[child].name) for child in keeping)
        verb = "keeps" if len(keeping) == 1 else "keep"
        return (
            f"Of {key.amount(max(pool, 0))} left {left}, {names} {verb} back "
            f"{_figure(key, total)}, and this job requests {_figure(key, amount)}."
        )

    def _kept_by(self, node: str, key: QuotaKey) -> float:
        """Return what a project and those below it keep back of their unused guarantees."""
        row, below = self._rows.get((node, key)), 0.0
        for child in self._children[node]:
            below += self._kept_by(child, key)
        if row is None or row.lending_limit is None:
            return below
        return max(below, row.guaranteed - row.lending_limit - self._used[node, key])

    def _rows_of(self, path: Sequence[ProjectView], key: QuotaKey) -> Iterator[QuotaView]:
        for project in path:
            if row := self._rows.get((project.id, key)):
                yield row

    def _path(self, project_id: str | None) -> list[ProjectView]:
        path: list[ProjectView] = []
        while project_id is not None and project_id in self._projects:
            path.append(self._projects[project_id])
            project_id = path[-1].parent_id
        return path

    def _nodes(self, project_id: str | None) -> list[str | None]:
        path = [project.id for project in self._path(project_id)]
        return [*(path or [_NO_PROJECT]), _TENANT]


def _first_key(use: Use) -> QuotaKey:
    """Return what counts first of what a job uses: GPUs before others."""
    return min(use.amounts, key=lambda key: (key.resource is not QuotaResource.GPUS, key))


def _figure(key: QuotaKey, amount: float) -> str:
    """Return an amount for a sentence that names its unit elsewhere."""
    return key.amount(amount) if key == _MEMORY else f"{amount:g}"
