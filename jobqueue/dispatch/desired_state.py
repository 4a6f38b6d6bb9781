"""Desired state: the attempts that an appliance should run or stop, with all that they need."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.secretbox import SecretBox
from datasets.staging import dataset_orders, staged_datasets
from jobqueue.dispatch.appliance_views import cluster_of, matching_models
from jobqueue.dispatch.waiting_jobs import job_view
from jobqueue.gangs.frameworks import abilities_of, framework_env, framework_secrets
from jobqueue.gangs.members import gangs_of, network_of
from jobqueue.images.tokens import RegistryTokens
from jobqueue.jobs.job_secrets import decrypt_secrets
from jobqueue.jobs.quarantine import probe_order
from jobqueue.jobs.relations import array_env
from jobqueue.models import Attempt, Job
from jobqueue.partitions.orders import ordered_partitions
from jobqueue.placement.clusters import NodeNeed
from jobqueue.rentals import RENTED_JOB
from jobqueue.states import ALLOCATED_STATES, AttemptState
from jobqueue.storage.models import ContainerStorage
from protocol.attempts import AttemptSpec, DesiredState, RegistryToken
from protocol.challenges import ChallengeOrder
from protocol.clusters import requested_gpus
from protocol.datasets import StagedDataset
from protocol.gangs import Gang, JobNetwork
from protocol.gpu_slices import GPUSlice
from protocol.job_spec import ContainerPolicy, ContainerSpec, JobKind
from protocol.results import OutputFolders
from tenants.models import Appliance, Challenge, ChallengeOutcome, Tenant

# The first jobs of an appliance's queue, whose data it fetches ahead.
_MAX_AWAITED = 50


def desired_state(
    session: Session,
    appliance_id: str,
    *,
    box: SecretBox,
    registry: RegistryTokens | None = None,
    now: datetime | None = None,
    wants_tunnel: bool = False,
) -> DesiredState:
    """Return the attempts that should run on an appliance, and those that should stop.

    With a `registry`, it has a token that is valid from `now` to pull their images.

    Raises:
        UnavailableError: the key of a job's secrets is missing.
        NotFoundError: the appliance was deleted.
    """
    # Read the generation first: a concurrent change then shows as a newer one at the next poll.
    columns = Appliance.desired_generation, Appliance.quarantined_at, Tenant.slug
    of_tenant = select(*columns).join(Tenant, Tenant.id == Appliance.tenant_id)
    place = session.execute(of_tenant.where(Appliance.id == appliance_id)).one_or_none()
    if place is None:
        raise NotFoundError.of("appliance", appliance_id)
    attempts = allocated_attempts(session, Attempt.appliance_id == appliance_id)
    running = [a for a in attempts if not _is_stopping(a)]
    probe = None if place.quarantined_at is None else probe_order(session, appliance_id)
    pulls = _Pulls(session, registry, now, slug=place.slug)
    images = [attempt.job.image for attempt in running if attempt.contract_id is None]
    images += [probe.image] if probe and probe.image else []
    specs = _specs(session, appliance_id, running, box)
    return DesiredState(
        generation=place.desired_generation,
        attempts=[
            pulls.checked(attempt, spec) for attempt, spec in zip(running, specs, strict=True)
        ],
        stopping=[a.id for a in attempts if _is_stopping(a)],
        registry=pulls.token_of(place.slug, images),
        wants_tunnel=wants_tunnel,
        storage_generation=_storage_generation(session, appliance_id),
        probe=probe,
        gpu_partitions=ordered_partitions(session, appliance_id),
        datasets=dataset_orders(
            session, appliance_id, box, awaited=_awaited_versions(session, appliance_id)
        ),
        challenge=challenge_order(session, appliance_id),
    )


def allocated_attempts(session: Session, condition: ColumnElement[bool]) -> list[Attempt]:
    """Return the attempts with resources that meet a condition on them or their appliance."""
    statement = (
        select(Attempt)
        .join(Appliance, Appliance.id == Attempt.appliance_id)
        .where(Attempt.state.in_(ALLOCATED_STATES), condition)
        .order_by(Attempt.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement).unique())


def stoppable_attempts(session: Session, condition: ColumnElement[bool]) -> list[Attempt]:
    """Return those of `allocated_attempts` that neither a user nor the queue stops yet."""
    attempts = allocated_attempts(session, condition & Attempt.stop_reason.is_(None))
    return [attempt for attempt in attempts if attempt.job.stop_requested_at is None]


def challenge_order(session: Session, appliance_id: str) -> ChallengeOrder | None:
    """Return the challenge that an appliance should answer, if any.

    `marketplace.verification` orders it.
    """
    unanswered = select(Challenge.spec).where(
        Challenge.appliance_id == appliance_id,
        Challenge.outcome == ChallengeOutcome.OPEN,
        Challenge.answered_at.is_(None),
    )
    spec = session.scalars(unanswered.order_by(Challenge.number.desc()).limit(1)).one_or_none()
    return msgspec.convert(spec, ChallengeOrder) if spec is not None else None


def _storage_generation(session: Session, appliance_id: str) -> int:
    """Return the number of reports that were requested of an appliance."""
    generation = select(ContainerStorage.generation)
    number = session.scalar(generation.where(ContainerStorage.appliance_id == appliance_id))
    return number or 0


def _awaited_versions(session: Session, appliance_id: str) -> list[str]:
    """Return the versions that the jobs which are bound to an appliance read, in their order."""
    statement = (
        select(Job.options["datasets"].label("datasets"))
        .join(Attempt, Attempt.job_id == Job.id)
        .where(
            Attempt.appliance_id == appliance_id,
            Attempt.state == AttemptState.BOUND,
            Job.options["datasets"].as_string().is_not(None),
        )
        .order_by(Job.queue_at, Job.id)
        .limit(_MAX_AWAITED)
    )
    return [
        stored["version_id"] for datasets in session.scalars(statement) for stored in datasets or ()
    ]


def _specs(
    session: Session, appliance_id: str, attempts: Sequence[Attempt], box: SecretBox
) -> list[AttemptSpec]:
    gangs = gangs_of(session, attempts)
    mounts: dict[str | None, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.job.datasets:
            customer_id = attempt.tenant_id if attempt.contract_id else None
            mounts[customer_id][attempt.id] = attempt.job.datasets
    staged: dict[str, list[StagedDataset]] = {}
    for customer_id, of_attempts in mounts.items():
        staged |= staged_datasets(session, appliance_id, of_attempts, box, customer_id=customer_id)
    outputs = _output_folders(attempts)
    models = _ordered_models(session, appliance_id, attempts)
    return [
        structs.replace(
            _spec(attempt, box, gangs.get(attempt.id)),
            datasets=staged.get(attempt.id, []),
            outputs=outputs.get(attempt.id),
            gpu_models=models.get(attempt.id, []),
        )
        for attempt in attempts
    ]


def _output_folders(attempts: Sequence[Attempt]) -> dict[str, OutputFolders]:
    """Return the output folders of attempts whose jobs have any, by the attempt's id."""
    return {
        attempt.id: OutputFolders(
            paths=attempt.job.outputs, previous_attempt_id=_previous_attempt_id(attempt)
        )
        for attempt in attempts
        if attempt.job.outputs
    }


def _previous_attempt_id(attempt: Attempt) -> str:
    """Return the last attempt before this one that has started, and may have left files."""
    earlier = [
        other.id
        for other in attempt.job.attempts
        if other.number < attempt.number and other.started_at is not None
    ]
    return earlier[-1] if earlier else ""


def _spec(attempt: Attempt, box: SecretBox, gang: Gang | None) -> AttemptSpec:
    job = attempt.job
    container = msgspec.convert(job, ContainerSpec, from_attributes=True)
    env = {**framework_env(job, gang, abilities_of(attempt)), **job.env, **array_env(job)}
    fields = structs.asdict(container) | {"env": env}
    return AttemptSpec(
        attempt_id=attempt.id,
        job_id=job.id,
        secrets={**framework_secrets(gang, box), **decrypt_secrets(box, job.secret_env)},
        gpu_uuids=_ordered_gpus(attempt),
        gpu_slice=msgspec.convert(attempt.gpu_slice, GPUSlice | None),
        is_service=job.kind is JobKind.SERVICE,
        container_policy=job.container_policy.value,
        gang=gang,
        network=network_of(job).value,
        uses_rdma=job.uses_rdma,
        **fields,
    )


def _ordered_gpus(attempt: Attempt) -> list[str]:
    """Return the GPUs that an executor is told; a cluster chooses its own, so their number."""
    if not attempt.is_on_cluster:
        return attempt.gpu_uuids
    return requested_gpus(len(attempt.gpu_uuids))


class _Pulls:
    """How the images of attempts are pulled from the portal's registry, and from others.

    An appliance that several tenants use has images of all of them: one that is stored there must
    not start for a tenant who may not pull it.
    """

    def __init__(
        self,
        session: Session,
        registry: RegistryTokens | None,
        now: datetime | None,
        *,
        slug: str,
    ) -> None:
        self._session = session
        self._registry = registry
        self._now = now
        self._slug = slug  # of the appliance's tenant

    def token_of(self, slug: str, images: Sequence[str]) -> RegistryToken | None:
        """Return the token of a tenant to pull images; None where it needs or may have none."""
        registry = self._registry
        if registry is None or self._now is None or not images or not registry.host:
            return None
        token = registry.pull_token(slug, images, now=self._now)
        return None if token is None else RegistryToken(host=registry.host, token=token)

    def checked(self, attempt: Attempt, spec: AttemptSpec) -> AttemptSpec:
        """Return how an attempt runs, with what isolates a rented one from the appliance."""
        if attempt.contract_id is not None:
            tenant = self._session.get_one(Tenant, attempt.tenant_id)
            return structs.replace(
                spec,
                name=RENTED_JOB,
                container_policy=ContainerPolicy.RESTRICTED.value,
                mounts=[],
                network=JobNetwork.BRIDGE.value,
                uses_rdma=False,
                always_pulls=True,
                registry=self.token_of(tenant.slug, [spec.image]),
            )
        registry = self._registry
        if registry is None or registry.may_pull(self._slug, spec.image):
            return spec
        return structs.replace(spec, always_pulls=True)


def _is_stopping(attempt: Attempt) -> bool:
    return attempt.job.stop_requested_at is not None or attempt.stop_reason is not None


def _ordered_models(
    session: Session, connector_id: str, attempts: Sequence[Attempt]
) -> dict[str, list[str]]:
    """Return the models that attempts on a cluster may get, by attempt, where jobs restrict them.

    They are named as the cluster names them, the one of most nodes with room first. Without a node
    that is large enough by the last report, these are the job's own words: the cluster refuses
    them, or waits for such a node.
    """
    choosy = [
        attempt
        for attempt in attempts
        if attempt.is_on_cluster
        and attempt.gpu_uuids
        and (attempt.job.gpu_models or attempt.job.gpu_memory_bytes)
    ]
    cluster = cluster_of(session, connector_id) if choosy else None
    if cluster is None:
        return {}
    models: dict[str, list[str]] = {}
    offers: dict[NodeNeed, list[str]] = {}
    names = set(cluster.models)
    for attempt in choosy:
        words = attempt.job.gpu_models
        need = job_view(attempt.job, names).shape.of_node
        if need not in offers:
            offers[need] = cluster.models_for(need)
        offered = offers[need]
        wanted = matching_models(words, offered) if words else frozenset(offered)
        models[attempt.id] = [model for model in offered if model in wanted] or sorted(wanted)
    return models
