"""What a requested job asks of clusters: its options, to run without a container, and its data.

The options are checked alone, then against what the connectors of the tenant's clusters report.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.quantities import format_duration
from jobqueue.executors.abilities import LIMITS, Need, needs_of
from jobqueue.jobs.appliance_requests import is_slice_request
from protocol.clusters import ClusterKind, ClusterQueue, option_names, options_of, root_of
from protocol.job_spec import JobKind, JobRequest
from tenants.fleet.appliances import ReportCache
from tenants.fleet.states import in_service
from tenants.models import Appliance

MAX_VALUE_LENGTH = 500
MAX_JSON_LENGTH = 8000
_JSON_OPTIONS = frozenset({"ray.runtime_env", "ray.resources"})
_RAY_RESOURCES = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
_WHITESPACE: frozenset[str] = frozenset("\n\r\t")
# The fields of needs that are not named after theirs.
_FIELDS: Mapping[Need, str] = {
    Need.SERVICE: "kind",
    Need.HOST_NETWORK: "network",
    Need.GANG_NETWORK: "network",
    Need.GANG: "framework",
    Need.IMAGE_COMMAND: "command",
    Need.NO_IMAGE: "image",
}
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


def option_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's options of clusters, by field."""
    for name, value in request.cluster_options.items():
        if problem := _option_problem(name, value):
            yield "cluster_options", problem
    kinds = _kinds_of(request)
    if len(kinds) > 1:
        named = " and ".join(kinds)
        yield "cluster_options", f"The options are for {named}; set those of one kind of cluster."
    elif kinds:
        yield from _limit_errors_of(kinds[0], request)


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
    kinds, wanted = _kinds_of(request), request.appliance_id
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
        errors = [list(_limit_errors_of(cluster.kind, request)) for cluster in suited]
        yield from min(errors, key=len)
    yield from _data_errors(suited, request)


def cluster_problems(
    clusters: Sequence[Cluster], request: JobRequest, *, appliance: str = ""
) -> list[str]:
    """Return what clusters say against a job before it is submitted, as sentences.

    With an `appliance`, by id or name, only that cluster counts, else all that the job may go to.
    A problem that only some of them have is left out: the job goes to another.
    """
    kinds = _kinds_of(request)
    if appliance:
        may = [cluster for cluster in clusters if appliance in {cluster.id, cluster.name}]
    elif kinds or not request.image:
        may = [cluster for cluster in clusters if not kinds or cluster.kind is kinds[0]]
    else:
        may = []
    problems = [_problems(cluster, request) for cluster in may]
    return min(problems, key=len, default=[])


def _kinds_of(request: JobRequest) -> list[ClusterKind]:
    """Return the kinds of clusters that the options of a request are for."""
    return [kind for kind in ClusterKind if options_of(kind, request.cluster_options)]


def _limit_errors_of(kind: ClusterKind, request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield what clusters of a kind can't do for a request, by field."""
    is_service, has_slice = request.kind is JobKind.SERVICE, is_slice_request(request)
    needs = needs_of(request, is_service=is_service, has_slice=has_slice)
    for limit in LIMITS:
        if limit.executor == kind and limit.needs <= needs:
            (need,) = limit.needs
            name = _slice_field(request) if need is Need.GPU_SLICE else _FIELDS.get(need, need)
            # `cluster_errors` knows which of them needs an image.
            if name != "image" and not name.endswith(" options"):
                yield name, f"{limit.reason[:1].upper()}{limit.reason[1:]}."
    for mount in () if request.image else request.mounts:
        if mount.source != mount.target:
            yield "mounts", f"Without an image, {mount.source} can't be at {mount.target}."


def _slice_field(request: JobRequest) -> str:
    names = ("gpu_slice", "gpu_memory_bytes", "gpu_compute")
    return next(name for name in names if getattr(request, name))


def _option_problem(name: str, value: str) -> str:
    """Return why an option can't be, as a sentence, or ""."""
    names = option_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        instead = f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(names)}."
        return f"There is no option {name[:MAX_VALUE_LENGTH]!r}. {instead}"
    is_json = name in _JSON_OPTIONS
    maximum = MAX_JSON_LENGTH if is_json else MAX_VALUE_LENGTH
    allowed = _WHITESPACE if is_json else frozenset()
    if not value.strip():
        return f"{name} is empty; enter a value, or remove it."
    if len(value) > maximum:
        return f"{name} has {len(value)} characters; use at most {maximum}."
    if not all(character.isprintable() or character in allowed for character in value):
        return f"{name} has control characters or line breaks; remove them."
    return _json_problem(name, value) if is_json else _text_problem(name, value)


def _json_problem(name: str, value: str) -> str:
    document: Any = None
    problem = ""
    try:
        document = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        problem = f"{name} is not JSON: {error}."
    except RecursionError:
        problem = f"{name} is nested too deeply; use fewer levels."
    if problem or isinstance(document, dict):
        return problem or (_resources_problem(document) if name == "ray.resources" else "")
    return f"{name} is not a JSON object; enter one, such as {{}}."


def _resources_problem(resources: Mapping[str, Any]) -> str:
    for name, amount in resources.items():
        if name in _RAY_RESOURCES:
            return f"ray.resources has {name}; use the fields of the job for it."
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount <= 0:
            return f"ray.resources: {name!r} is not a number above 0."
    return ""


def _text_problem(name: str, value: str) -> str:
    if name.startswith(f"{ClusterKind.SLURM}.") and value.lstrip().startswith("-"):
        return f"{name} is {value!r}; it can't begin with '-'."
    if name == "slurm.nice" and not (value.isascii() and value.isdecimal()):
        return f"{name} is {value!r}; enter a whole number, such as 100."
    if name == "kubernetes.node_selector":
        for part in value.split(","):
            key, equals, _ = part.partition("=")
            if not equals or not key.strip():
                return f"{name}: {part!r} is not KEY=VALUE; enter such as pool=a,zone=b."
    return ""


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
