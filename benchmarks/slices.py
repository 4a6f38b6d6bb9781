"""Slices of GPUs: one placement on a large fleet, and the demand of a real trace that they serve.

*One placement* asks a planner for slices on appliances that are cut in every mode, by policy. *The
trace* has pods for parts of GPUs (`gpu_milli`, see `jobqueue.placement.trace`) beside those for
whole ones. They get whole GPUs, MIG instances, or shares under MPS; `exact` gives each what it asks
for, which no hardware does. MIG cuts as many GPUs as the pods for parts demand, and the others stay
whole. The share of the demand that is served is the mean of some random orders.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.shared.document import (
    MILLISECONDS,
    Figures,
    Outcome,
    Promise,
    median,
    percentile,
    rounded,
    seconds_of,
)
from benchmarks.shared.fleet import GIB, GPUS, name_of
from core.clock import utc_now
from jobqueue.partitions.mig import place_layout
from jobqueue.placement.plan import Planner
from jobqueue.placement.policies import LEAST_FRAGMENTATION, POLICY_NAMES
from jobqueue.placement.slices import GPUKind, SliceNeed, SliceRequest
from jobqueue.placement.trace import read_nodes, read_pods, simulate
from jobqueue.placement.views import ApplianceView, GPUView, JobShape, JobView, Snapshot
from protocol.gpu_slices import WHOLE_GPU, MIGProfile, PartitionMode

MOST_MILLISECONDS = 5.0
# Alibaba's cluster-trace-gpu-v2023; without it, that part is left out.
TRACE = Path("var/traces/openb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the fleet, and the numbers of placements and of random orders of the trace."""

    appliances: int = 10_000
    placements: int = 2_000
    orders: int = 5


FULL = Plan()
QUICK = Plan(appliances=500, placements=100, orders=1)


def _profile(name: str, memory: int, units: int, slots: int, *starts: int) -> MIGProfile:
    return MIGProfile(
        name=name,
        profile_id=0,
        memory_bytes=memory * GIB,
        multiprocessors=units,
        slots=slots,
        starts=starts,
    )


# Those of an H100 with 80 GB.
PROFILES = (
    _profile("1g.10gb", 10, 16, 1, *range(7)),
    _profile("1g.20gb", 20, 26, 2, 0, 2, 4, 6),
    _profile("2g.20gb", 20, 32, 2, 0, 2, 4),
    _profile("3g.40gb", 40, 60, 4, 0, 4),
    _profile("4g.40gb", 40, 64, 4, 0),
    _profile("7g.80gb", 80, 132, 8, 0),
)
ON_DEMAND = GPUKind(mode=PartitionMode.MIG, memory_bytes=80 * GIB, profiles=PROFILES)
FIXED = GPUKind(
    mode=PartitionMode.MIG,
    memory_bytes=80 * GIB,
    profiles=PROFILES,
    layout=tuple(place_layout(PROFILES, ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]) or ()),
)
KINDS: Sequence[GPUKind | None] = (
    ON_DEMAND,
    FIXED,
    GPUKind(mode=PartitionMode.MPS, memory_bytes=80 * GIB, shares=4),
    GPUKind(mode=PartitionMode.TIME_SLICING, memory_bytes=80 * GIB, shares=4),
    None,
)


def measure(plan: Plan, _folder: Path) -> Outcome:
    """Place slices."""
    single = {policy: _placements(plan, policy) for policy in POLICY_NAMES}
    promises = [
        Promise(
            f"one placement of a slice, {policy}, median",
            figures["milliseconds"],
            MOST_MILLISECONDS,
            "ms",
        )
        for policy, figures in single.items()
    ]
    served = _served(plan) if TRACE.is_dir() else {}
    return Outcome({"placement": single, "served_ratio": served}, promises)


def _placements(plan: Plan, policy: str) -> Figures:
    chosen = random.Random(1)  # noqa: S311 - a benchmark
    needs = [
        SliceNeed("1g.10gb"),
        SliceNeed("3g.40gb"),
        SliceNeed(memory_bytes=8 * GIB),
        SliceNeed(memory_bytes=30 * GIB, compute=0.25),
    ]
    jobs = [
        JobView(
            id=f"{number:08}",
            name="job",
            submitted_at=utc_now(),
            gpus=1,
            slice_need=chosen.choice([*needs, None]),
            user_id=f"user-{chosen.randrange(50)}",
            cpus=2.0,
            memory_bytes=8 * GIB,
        )
        for number in range(plan.placements)
    ]
    views = [
        _view(name_of(number), KINDS[number % len(KINDS)]) for number in range(plan.appliances)
    ]
    workload = [(job.shape, 1.0) for job in jobs[:100]]
    snapshot = Snapshot(
        now=utc_now(), appliances=views, jobs=jobs, policy=policy, workload=workload
    )
    began = time.perf_counter()
    planner = Planner(snapshot)
    built = time.perf_counter() - began
    took = [MILLISECONDS * seconds_of(lambda job=job: planner.decide(job)) for job in jobs]  # type: ignore[misc]
    return {
        "milliseconds": median(took),
        "milliseconds_p95": percentile(took, 95),
        "milliseconds_of_the_snapshot": rounded(MILLISECONDS * built),
    }


def _view(name: str, kind: GPUKind | None) -> ApplianceView:
    gpus = [GPUView(f"{name}-{slot}", 80 * GIB, model="H100", kind=kind) for slot in range(GPUS)]
    return ApplianceView(
        id=name,
        name=name,
        executors=("simulated",),
        cpus=128.0,
        memory_bytes=1024 * GIB,
        gpus=gpus,
    )


def _served(plan: Plan) -> dict[str, Figures]:
    """Return the share of the trace's demand that is served, by how GPUs are shared."""
    nodes = read_nodes(TRACE / "node_list.csv")
    pods = read_pods(TRACE / "pod_list_default.csv")
    demand = sum(pod.gpus * pod.gpu_milli for pod in pods)
    of_parts = sum(pod.gpu_milli for pod in pods if pod.gpu_milli < WHOLE_GPU) / demand
    cut = [_slice(pod) for pod in pods]
    ways: dict[str, tuple[Sequence[ApplianceView], Sequence[JobShape]]] = {
        "whole GPUs only": (nodes, cut),
        "MIG": (_partly(nodes, ON_DEMAND, of_parts), cut),
        "MPS, 4 shares": (_partly(nodes, _shared_by_mps(4), 1.0), cut),
        "MPS, 10 shares": (_partly(nodes, _shared_by_mps(10), 1.0), cut),
        "exact": (nodes, pods),
    }
    return {
        name: {
            policy: rounded(
                fmean(
                    simulate(of_way, shapes, policy=policy, seed=seed).served_ratio
                    for seed in range(plan.orders)
                )
            )
            for policy in ("first_free_else_lru", LEAST_FRAGMENTATION)
        }
        for name, (of_way, shapes) in ways.items()
    }


def _shared_by_mps(shares: int) -> GPUKind:
    """Return a kind of GPU that MPS divides."""
    return GPUKind(mode=PartitionMode.MPS, memory_bytes=80 * GIB, shares=shares)


def _slice(pod: JobShape) -> JobShape:
    if not pod.gpus or pod.gpu_milli == WHOLE_GPU:
        return pod
    return pod._replace(slice=SliceRequest(SliceNeed(compute=pod.gpu_milli / WHOLE_GPU)))


def _partly(nodes: Sequence[ApplianceView], kind: GPUKind, ratio: float) -> Sequence[ApplianceView]:
    """Return the nodes with so many of their GPUs of a kind, spread over all."""
    views, due = [], 0.0
    for node in nodes:
        due += ratio * len(node.gpus)
        if node.gpus and due >= len(node.gpus):
            due -= len(node.gpus)
            node = replace(node, gpus=[replace(gpu, kind=kind) for gpu in node.gpus])  # noqa: PLW2901
        views.append(node)
    return views
