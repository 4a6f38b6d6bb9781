"""The clusters of a tenant: what their connectors report of them, and whether a job suits one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.quantities import format_duration
from jobqueue.jobs.cluster_requests import kinds_of, limit_errors_of
from protocol.clusters import ClusterKind, ClusterQueue, options_of, root_of
from protocol.job_spec import JobRequest
from tenants.fleet.reports import ReportCache
from tenants.fleet.states import in_service
from tenants.models import Appliance

# Options that name a queue of the cluster.
_QUEUE_OPTIONS = {ClusterKind.SLURM: "partition", ClusterKind.KUBERNETES: "queue"}


class _Report(msgspec.Struct, frozen=True):
    """A cluster's report without its nodes, of which it may have thousands."""

    kind: ClusterKind
    name: str = ""
    problem: str = ""
    runs_images: bool = False
    needs_image: bool = False
    refuses_secrets: bool = False
    data_roots: list[str] | None = None
    queues: list[ClusterQueue] = []


class _Inventory(msgspec.Struct):
    cluster: _Report | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, by the id and name of the appliance that is its connector."""

    id: str
    name: str
    report: _Report

    @property
    def kind(self) -> ClusterKind:
        """Its kind."""
        return self.report.kind

    @property
    def title(self) -> str:
        """Its name with what it is, such as `slurm-a (Slurm)`."""
        own = f", {self.report.name}" if self.report.name not in {"", self.name} else ""
        return f"{self.name} ({self.kind.capitalize()}{own})"


def _parse(inventory: str, health: str | None) -> _Report | None:  # noqa: ARG001 - of `ReportCache`
    try:
        return msgspec.json.decode(inventory, type=_Inventory).cluster
    except msgspec.ValidationError:
        return None  # such an appliance gets no jobs


_REPORTS = ReportCache(_parse)


def tenant_clusters(session: Session, tenant_id: str) -> list[Cluster]:
    """Return the clusters of a tenant by name, those that can't be reached included."""
    statement = select(Appliance.id, Appliance.name, Appliance.report_id).where(
        Appliance.tenant_id == tenant_id,
        Appliance.connector_id.is_(None),
        Appliance.fenced_at.is_(None),
        in_service(),
    )
    rows = session.execute(statement.order_by(Appliance.name)).all()
    reports = _REPORTS.read(session, {row.id: row.report_id for row in rows})
    return [Cluster(row.id, row.name, report) for row in rows if (report := reports.get(row.id))]


def cluster_errors(
    session: Session, tenant_id: str, request: JobRequest
) -> Iterator[tuple[str, str]]:
    """Yield why no cluster of a tenant takes a job that only clusters can run, by field."""
    kinds, wanted = kinds_of(request), request.appliance_id
    if len(kinds) > 1 or (request.image and not kinds and not wanted):
        return  # two kinds are an error of the options
    clusters = tenant_clusters(session, tenant_id)
    if request.image and not kinds:
        chosen = [cluster for cluster in clusters if wanted in {cluster.id, cluster.name}]
        yield from _data_errors(_suited(chosen, request), request)
        return
    may = [cluster for cluster in clusters if not kinds or cluster.kind is kinds[0]]
    if not may:
        yield _no_cluster(kinds, clusters)
        return
    if wanted:
        suited = _suited(may, request)
        may = [cluster for cluster in may if wanted in {cluster.id, cluster.name}]
        if not may:
            what = f"no {kinds[0].capitalize()} cluster" if kinds else "no cluster"
            instead = f"choose {_listed(suited, ' or ')}" if suited else "choose none"
            yield "appliance_id", f"{wanted} is {what}; {instead}."
            return
    suited = _suited(may, request)
    if not suited:
        yield "image", _image_text(may, request)
    elif not kinds:
        # Those of the kind that its options name are known without the clusters.
        errors = [list(limit_errors_of(cluster.kind, request)) for cluster in suited]
        yield from min(errors, key=len)
    yield from _data_errors(suited, request)


def cluster_problems(
    clusters: Sequence[Cluster], request: JobRequest, *, appliance: str = ""
) -> list[str]:
    """Return what clusters say against a job before it is submitted, as sentences.

    With an `appliance`, by id or name, only that cluster counts, else all that the job may go to.
    A problem that only some of them have is left out: the job goes to another.
    """
    kinds = kinds_of(request)
    if appliance:
        may = [cluster for cluster in clusters if appliance in {cluster.id, cluster.name}]
    elif kinds or not request.image:
        may = [cluster for cluster in clusters if not kinds or cluster.kind is kinds[0]]
    else:
        may = []
    problems = [_problems(cluster, request) for cluster in may]
    return min(problems, key=len, default=[])


def _problems(cluster: Cluster, request: JobRequest) -> list[str]:
    told = cluster.report.problem.rstrip(".")
    problems = [f"{cluster.name} takes no jobs now: {told}."] if told else []
    problems += [problem] if (problem := _image_problem(cluster, request)) else []
    problems += [text for _, text in _data_problems(cluster, request)]
    return [*problems, *_queue_problems(cluster, request)]


def _data_errors(clusters: Iterable[Cluster], request: JobRequest) -> list[tuple[str, str]]:
    """Return what the cluster that suits a job best has against its mounts and secrets."""
    problems = (list(_data_problems(cluster, request)) for cluster in clusters)
    return min(problems, key=len, default=[])


def _data_problems(cluster: Cluster, request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield, by field, what a connector would refuse; one of an earlier version tells nothing."""
    roots = cluster.report.data_roots
    for mount in request.mounts if roots is not None else ():
        if root_of(mount.source, roots or ()) is None:
            listed = f"It has volumes for {', '.join(roots)}." if roots else "It has no volumes."
            yield "mounts", f"{cluster.name} can't mount {mount.source}. {listed}"
    if cluster.report.refuses_secrets and (request.secrets or request.secrets_from):
        text = (
            "would show the secrets to all users of its cluster, so it takes no jobs with secrets"
        )
        yield "secrets", f"{cluster.name} {text}. Remove them, or ask an admin to allow them."


def _queue_problems(cluster: Cluster, request: JobRequest) -> Iterator[str]:
    """Yield what speaks against the queues that a job names, or that it gets by default."""
    option = _QUEUE_OPTIONS.get(cluster.kind, "")
    named = options_of(cluster.kind, request.cluster_options).get(option, "")
    queues = {queue.name: queue for queue in cluster.report.queues}
    defaults = [queue.name for queue in queues.values() if queue.is_default]
    for name in filter(None, map(str.strip, named.split(","))) if named else defaults:
        queue = queues.get(name)
        if queue is None:
            listed = f" It has {', '.join(sorted(queues)[:10])}." if queues else ""
            yield f"{cluster.name} lists no {option} {name}.{listed}"
            continue
        title = f"The {option} {name} of {cluster.name}"
        if not queue.is_open:
            yield f"{title} takes no jobs now."
        if 0 < queue.time_limit_seconds < request.time_limit_seconds:
            limits = queue.time_limit_seconds, request.time_limit_seconds
            allowed, wanted = map(format_duration, limits)
            yield f"{title} allows {allowed} at most; the time limit of the job is {wanted}."


def _image_problem(cluster: Cluster, request: JobRequest) -> str:
    """Return why a cluster can't run the image of a job, or a job without one, or ""."""
    if request.image and not cluster.report.runs_images:
        return f"{cluster.name} runs no images; leave the image empty."
    if not request.image and cluster.report.needs_image:
        return f"{cluster.name} needs an image; name one, such as 'python:3.13'."
    return ""


def _suited(clusters: Iterable[Cluster], request: JobRequest) -> list[Cluster]:
    return [cluster for cluster in clusters if not _image_problem(cluster, request)]


def _no_cluster(kinds: Sequence[ClusterKind], clusters: Sequence[Cluster]) -> tuple[str, str]:
    if not kinds:
        return "image", "The image is empty; name one, such as 'python:3.13'."
    title = kinds[0].capitalize()
    others = f", only {_listed(clusters)}" if clusters else ""
    instead = f"Remove the options, or ask an admin to connect a {title} cluster."
    return "cluster_options", f"No {title} cluster is connected{others}. {instead}"


def _image_text(clusters: Sequence[Cluster], request: JobRequest) -> str:
    if len(clusters) == 1:
        return _image_problem(clusters[0], request)
    if request.image:
        return f"{_listed(clusters)} run no images; leave the image empty."
    return f"{_listed(clusters)} need an image; name one, such as 'python:3.13'."


def _listed(clusters: Sequence[Cluster], last: str = " and ") -> str:
    titles = [cluster.title for cluster in clusters[:5]]
    return f"{', '.join(titles[:-1])}{last}{titles[-1]}" if len(titles) > 1 else titles[0]
