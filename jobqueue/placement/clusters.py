"""Clusters behind connectors: what their nodes have, and what is free while a plan grows.

A job goes to the connector, whose own queue chooses the node. There is *room* if a node that is up
has what the job needs now; then it competes with appliances that are free. Without room it may wait
in the cluster's queue, of which placement bounds the length. What the cluster's report does not
have yet is taken from the fullest node on which it fits, as most schedulers do.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.quantities import format_duration
from protocol.clusters import MODEL_SEPARATOR, ClusterQueue, ClusterReport, NodeState

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Sums of fractions of a core carry rounding errors far below any request.
CPU_TOLERANCE = 1e-6
# A job that started this long ago is in the report: connectors read their cluster and send a
# heartbeat every 10 s each.
REPORT_AGE = timedelta(seconds=25)


class QueueNeed(NamedTuple):
    """What a job needs of the partitions of a cluster.

    Attributes:
        names: those that it may go to; empty for the default.
        time_limit_seconds: of the job; 0 is none.
    """

    names: frozenset[str] = frozenset()
    time_limit_seconds: float = 0.0


ANY_QUEUE = QueueNeed()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """What a job needs of one node.

    Attributes:
        gpus: whole ones.
        gpu_models: of which one must be theirs; empty for any.
        gpu_memory_bytes: the memory of each; 0 for any.
        cpus: cores.
        memory_bytes: of the node.
        queue: what its partitions must accept.
    """

    gpus: int = 0
    gpu_models: frozenset[str] = frozenset()
    gpu_memory_bytes: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    queue: QueueNeed = ANY_QUEUE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueView:
    """A partition of a cluster, with the `nodes` that are in it."""

    queue: ClusterQueue
    nodes: Mask

    def refusal(self, need: QueueNeed) -> str:
        """Return why it would leave a job waiting, whatever is free; or ""."""
        limit, wanted = self.queue.time_limit_seconds, need.time_limit_seconds
        if not self.queue.is_open:
            return f"its partition {self.queue.name} is closed"
        if limit and wanted > limit:
            allowed, asked = format_duration(limit), format_duration(wanted)
            return f"its partition {self.queue.name} allows at most {allowed}, {asked} requested"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterView:
    """A cluster as its connector reported it; the arrays have a place for each node.

    Attributes:
        problem: why it takes no jobs, in its own words; "" if it does.
        runs_images: whether jobs run in containers; else only those without an image do.
        needs_image: whether jobs without an image can't run.
        max_waiting: how many jobs of Vedette may wait in its queue.
        places: of the nodes, by name.
        is_up: the nodes that take jobs.
        is_down: those on which nothing runs; the others are drained.
        models: of the GPUs of each node.
        queues: the partitions that have nodes, by name.
    """

    problem: str
    runs_images: bool
    needs_image: bool
    max_waiting: int
    places: Mapping[str, int]
    is_up: Mask
    is_down: Mask
    models: Sequence[str]
    cpus: Floats
    memory_bytes: Ints
    gpus: Ints
    gpu_memory_bytes: Ints
    free_cpus: Floats
    free_memory_bytes: Ints
    free_gpus: Ints
    queues: Mapping[str, QueueView] = field(default_factory=dict)

    @classmethod
    def of(cls, report: ClusterReport) -> "ClusterView":
        """Return what placement needs of a report."""
        nodes = report.nodes
        cpus = np.array([node.cpus for node in nodes], np.float64)
        memory = np.array([node.memory_bytes for node in nodes], np.int64)
        gpus = np.array([node.gpus for node in nodes], np.int64)
        return cls(
            problem=report.problem,
            runs_images=report.runs_images,
            needs_image=report.needs_image,
            max_waiting=report.max_waiting,
            places={node.name: place for place, node in enumerate(nodes)},
            is_up=np.array([node.state is NodeState.UP for node in nodes], np.bool_),
            is_down=np.array([node.state is NodeState.DOWN for node in nodes], np.bool_),
            models=tuple(node.gpu_model for node in nodes),
            cpus=cpus,
            memory_bytes=memory,
            gpus=gpus,
            gpu_memory_bytes=np.array([node.gpu_memory_bytes for node in nodes], np.int64),
            free_cpus=cpus - [node.allocated_cpus for node in nodes],
            free_memory_bytes=memory
            - np.array([node.allocated_memory_bytes for node in nodes], np.int64),
            free_gpus=gpus - np.array([node.allocated_gpus for node in nodes], np.int64),
            queues=_queues_of(report),
        )

    @property
    def gpu_models(self) -> list[str]:
        """The models of the GPUs of all nodes that are up, once for each GPU."""
        counts = np.where(self.is_up, self.gpus, 0).tolist()
        return [
            model for model, count in zip(self.models, counts, strict=True) for _ in range(count)
        ]

    @property
    def largest(self) -> tuple[int, float, int]:
        """The GPUs, cores and bytes of memory of the largest node, in this order."""
        rows = zip(self.gpus.tolist(), self.cpus.tolist(), self.memory_bytes.tolist(), strict=True)
        return max(rows, default=(0, 0.0, 0))

    def model_at(self, node: str) -> str:
        """Return the model of a node's GPUs; of an unknown node, the most frequent one."""
        place = self.places.get(node)
        if place is not None:
            return self.models[place]
        counts: Counter[str] = Counter()
        for model, count in zip(self.models, self.gpus.tolist(), strict=True):
            counts[model] += count
        return max(counts, key=lambda model: counts[model], default="")

    def model_for(self, place: int | None, wanted: Collection[str]) -> str:
        """Return the model of the GPUs that a job gets on a node, or once it has one."""
        if place is not None and place >= 0:
            return self.models[place]
        suitable = (model for model in self.models if model in wanted)
        return next(suitable, self.model_at(""))

    def of_models(self, models: Collection[str]) -> Mask:
        """Return the nodes with GPUs of some models."""
        has = (model in models for model in self.models)
        return np.fromiter(has, np.bool_, len(self.models))

    def of_kind(self, need: NodeNeed) -> Mask:
        """Return the nodes whose GPUs are of the model and have the memory that a job needs."""
        nodes: Mask = self.gpu_memory_bytes >= need.gpu_memory_bytes
        if need.gpu_models:
            nodes = nodes & self.of_models(need.gpu_models)
        return nodes & (self.gpus > 0)

    def queues_for(self, need: QueueNeed) -> list[QueueView]:
        """Return the partitions that a job may go to; none if the report has no nodes of one.

        The report may be incomplete, so all nodes count then, and the cluster has the last word.
        """
        if need.names:
            named = [self.queues[name] for name in sorted(need.names) if name in self.queues]
            return named if len(named) == len(need.names) else []
        return [view for view in self.queues.values() if view.queue.is_default]

    def queue_refusal(self, need: QueueNeed) -> str:
        """Return why all partitions that a job may go to would leave it waiting, or ""."""
        refusals = [view.refusal(need) for view in self.queues_for(need)]
        return "; ".join(refusals) if all(refusals) else ""

    def in_queues(self, need: QueueNeed) -> Mask:
        """Return the nodes of the partitions that a job may go to, without those that refuse it.

        If all refuse it, their nodes are returned.
        """
        chosen = self.queues_for(need)
        accepting = [view for view in chosen if not view.refusal(need)] or chosen
        if not accepting:
            return np.ones(len(self.models), np.bool_)
        nodes: Mask = np.logical_or.reduce([view.nodes for view in accepting])
        return nodes

    def models_for(self, need: NodeNeed) -> list[str]:
        """Return the models of the nodes that could run a job.

        The first is the one of most nodes with room for it, then of most nodes that are up.
        """
        able = self.large_enough(need)
        up = able & self.is_up
        free = up & (self.free_gpus >= need.gpus) & (self.free_memory_bytes >= need.memory_bytes)
        free &= self.free_cpus >= need.cpus - CPU_TOLERANCE
        with_room, running, all_able = map(self._count_models, (free, up, able))
        return sorted(all_able, key=lambda model: (-with_room[model], -running[model], model))

    def _count_models(self, nodes: Mask) -> Counter[str]:
        """Return for each model how many of some nodes have GPUs of it."""
        counts: Counter[str] = Counter()
        for text, count in Counter(compress(self.models, nodes.tolist())).items():
            counts.update(dict.fromkeys(filter(None, text.split(MODEL_SEPARATOR)), count))
        return counts

    def large_enough(self, need: NodeNeed) -> Mask:
        """Return the nodes that could run a job while they are idle, whatever their state."""
        nodes: Mask = (self.gpus >= need.gpus) & (self.memory_bytes >= need.memory_bytes)
        nodes &= self.cpus >= need.cpus - CPU_TOLERANCE
        if self.queues:
            nodes &= self.in_queues(need.queue)
        return nodes & self.of_kind(need) if need.gpus else nodes


def _queues_of(report: ClusterReport) -> dict[str, QueueView]:
    """Return the partitions that have nodes; one that is not in the list of queues is open."""
    listed = {queue.name: queue for queue in report.queues}
    members: dict[str, list[int]] = {}
    for place, node in enumerate(report.nodes):
        for name in node.queues:
            members.setdefault(name, []).append(place)
    views = {}
    for name, places in members.items():
        nodes = np.zeros(len(report.nodes), np.bool_)
        nodes[places] = True
        views[name] = QueueView(queue=listed.get(name) or ClusterQueue(name=name), nodes=nodes)
    return views


class ClusterRoom:
    """What is free on the nodes of a cluster while a plan grows; `waiting` of our jobs wait."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.cpus = view.free_cpus.copy()
        self.memory_bytes = view.free_memory_bytes.copy()
        self.gpus = view.free_gpus.copy()
        self.waiting = 0
        self._large_enough: dict[NodeNeed, Mask] = {}

    @property
    def has_queue_room(self) -> bool:
        """Return whether another job of Vedette may wait in the cluster's queue."""
        return self.waiting < self.view.max_waiting

    @property
    def free_gpus(self) -> Ints:
        """The free GPUs of each node that is up."""
        return np.where(self.view.is_up, np.maximum(self.gpus, 0), 0)

    def large_enough(self, need: NodeNeed) -> Mask:
        """Return the nodes that could run a job while they are idle, whatever their state."""
        if need not in self._large_enough:
            self._large_enough[need] = self.view.large_enough(need)
        return self._large_enough[need]

    def with_room(self, need: NodeNeed) -> Mask:
        """Return the nodes that could run a job now."""
        nodes: Mask = self.large_enough(need) & self.view.is_up
        nodes &= (self.gpus >= need.gpus) & (self.memory_bytes >= need.memory_bytes)
        return nodes & (self.cpus >= need.cpus - CPU_TOLERANCE)

    def pick(self, need: NodeNeed) -> int | None:
        """Return the place of the fullest node with room for a job; None without room."""
        able = np.flatnonzero(self.with_room(need))
        if not able.size:
            return None
        return int(able[np.lexsort((self.cpus[able], self.gpus[able]))[0]])

    def most_left(self, *, cpus: float, gpus: float) -> float:
        """Return what is free on the emptiest node, as a sum of shares of so many of each."""
        left = np.where(self.view.is_up, self.gpus / gpus + self.cpus / cpus, 0.0)
        return float(left.max(initial=0.0))

    def change(self, place: int, need: NodeNeed, *, sign: int) -> None:
        """Give resources of a node back, or take them with a `sign` of -1."""
        self.gpus[place] += sign * need.gpus
        self.cpus[place] += sign * need.cpus
        self.memory_bytes[place] += sign * need.memory_bytes
