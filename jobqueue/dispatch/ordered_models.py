"""The models of GPUs that a connector asks its cluster for."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobqueue.dispatch.appliance_views import cluster_of, matching_models
from jobqueue.dispatch.waiting_jobs import job_view
from jobqueue.models import Attempt
from jobqueue.placement.clusters import NodeNeed


def ordered_models(
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
