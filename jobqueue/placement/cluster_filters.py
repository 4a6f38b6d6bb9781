"""Filters for the connectors of clusters: by the nodes, not by the host of the agent."""

from collections.abc import Callable

import numpy as np

from core.quantities import format_size
from jobqueue.executors.abilities import Need
from jobqueue.placement.clusters import CPU_TOLERANCE, ClusterRoom, Mask
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.views import JobShape


def _of_clusters(is_rejected: Callable[[ClusterRoom, JobShape], bool]) -> Callable[..., Mask]:
    """Return a test of all appliances that only connectors can fail."""

    def rejects(ledger: Ledger, shape: JobShape) -> Mask:
        mask = np.zeros(ledger.size, np.bool_)
        for place, room in ledger.clusters.items():
            mask[place] = is_rejected(room, shape)
        return mask

    return rejects


def _is_wrong_image(room: ClusterRoom, shape: JobShape) -> bool:
    has_image = Need.NO_IMAGE not in shape.needs
    return not room.view.runs_images if has_image else room.view.needs_image


def image_fact(_ledger: Ledger, shape: JobShape, _place: int) -> str:
    """Return why a cluster can't run a job with its image, or without one."""
    if Need.NO_IMAGE in shape.needs:
        return "runs containers only; set an image"
    return "runs no containers; leave the image empty for the environment of its nodes"


def _none_large_enough(room: ClusterRoom, shape: JobShape) -> bool:
    if shape.slice is not None:
        return True
    # Without nodes, the connector has not read its cluster yet.
    return bool(room.view.places) and not room.large_enough(shape.of_node).any()


def _none_accepts(room: ClusterRoom, shape: JobShape) -> bool:
    return not (room.large_enough(shape.of_node) & ~room.view.is_down).any()


def nodes_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return what no node of a cluster has for a job."""
    if shape.slice is not None:
        return f"has whole GPUs only, {shape.slice.need} requested"
    cluster, need = ledger.clusters[place].view, shape.of_node
    kind = cluster.in_queues(need.queue)
    part = "" if kind.all() else " of its partition"
    kind &= cluster.of_kind(need) if need.gpus else True
    wanted = _requested(shape)
    if not kind.any():
        unknown = need.gpu_memory_bytes and not cluster.gpu_memory_bytes[cluster.gpus > 0].any()
        note = ", whose memory the cluster does not report" if unknown else ""
        return f"no node{part} has GPUs of that kind{note}, {wanted}"
    is_any_kind = not (need.gpu_models or need.gpu_memory_bytes)
    of_kind = "" if is_any_kind else " of that kind"
    gpu_maximum = int(cluster.gpus[kind].max())
    if need.gpus > gpu_maximum:
        gpus = f"{gpu_maximum} GPU" if gpu_maximum == 1 else f"{gpu_maximum} GPUs"
        return f"the largest node{part}{of_kind} has {gpus}, {wanted}"
    kind &= cluster.gpus >= need.gpus
    with_them = f"{part} with such GPUs" if need.gpus else part
    most_cpus = float(cluster.cpus[kind].max())
    if need.cpus > most_cpus + CPU_TOLERANCE:
        return f"the largest node{with_them} has {most_cpus:g} CPU cores, {need.cpus:g} requested"
    most_memory = int(cluster.memory_bytes[kind].max())
    if need.memory_bytes > most_memory:
        has = f"has {format_size(most_memory)} of memory"
        return f"the largest node{with_them} {has}, {format_size(need.memory_bytes)} requested"
    return f"no node{part} has the requested GPUs, CPU cores and memory together"


def _requested(shape: JobShape) -> str:
    models = f" {' or '.join(sorted(shape.gpu_models))}" if shape.gpu_models else ""
    memory = f" with {format_size(shape.gpu_memory_bytes)}" if shape.gpu_memory_bytes else ""
    return f"{shape.gpus}{models}{memory} requested"


def queue_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return why the partitions that a job may go to would leave it waiting."""
    return ledger.clusters[place].view.queue_refusal(shape.queue)


def down_fact(ledger: Ledger, _shape: JobShape, place: int) -> str:
    """Return why no node of a cluster accepts a job that some could run."""
    if not ledger.clusters[place].view.places:
        return "has reported no nodes"
    return "the nodes that are large enough are down"


def _is_full(room: ClusterRoom, shape: JobShape) -> bool:
    return not room.with_room(shape.of_node).any()


def busy_fact(ledger: Ledger, _shape: JobShape, place: int) -> str:
    """Return that a cluster has no room, and how long its queue is."""
    waiting = ledger.clusters[place].waiting
    wait = "waits" if waiting == 1 else "wait"
    return f"no node has room, {waiting} of Vedette's jobs {wait} in its queue"


wrong_images = _of_clusters(_is_wrong_image)
too_small_nodes = _of_clusters(_none_large_enough)
refusing_queues = _of_clusters(lambda room, shape: bool(room.view.queue_refusal(shape.queue)))
unavailable = _of_clusters(lambda room, _: bool(room.view.problem))
no_nodes_up = _of_clusters(_none_accepts)
full_nodes = _of_clusters(_is_full)
