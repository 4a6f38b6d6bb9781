"""Slices of GPUs in the demo: how its tenants share GPUs, and the jobs that need a part of one."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from protocol.gpu_slices import PartitionMode
from tenants.models import Role
from tenants.scope import Scope

SHARING_LABEL = "gpu-sharing"
GIB = 1024**3


POLICIES: Mapping[str, Sequence[PolicyRequest]] = {
    "acme": (
        PolicyRequest(name="Notebooks", labels={SHARING_LABEL: "mig"}, mode=PartitionMode.MIG),
        PolicyRequest(
            name="Small services", labels={SHARING_LABEL: "mps"}, mode=PartitionMode.MPS, shares=4
        ),
    ),
    "globex": (
        PolicyRequest(
            name="Lab",
            labels={SHARING_LABEL: "mig"},
            mode=PartitionMode.MIG,
            layout=["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"],
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class SliceJob:
    """Jobs for slices, of which some run at all times.

    Attributes:
        name: the names begin with it.
        count: how many run.
        needs: what they ask for.
        seconds: how long a session lasts; None for a service.
        faulty_share: of them, that end with a fatal fault of their GPU.
    """

    name: str
    image: str
    command: tuple[str, ...]
    count: int
    needs: Mapping[str, Any]
    seconds: tuple[int, int] | None = None
    faulty_share: float = 0.0

    def is_missing(self, names: Collection[str]) -> bool:
        """Return whether fewer run than should."""
        return sum(name.startswith(f"{self.name}-") for name in names) < self.count

    def request(self, numbers: random.Random) -> dict[str, Any]:
        """Return a request for one."""
        env = {}
        if self.seconds is not None:
            env = {"SIM_SECONDS": str(numbers.randint(*self.seconds)), "SIM_LINE_SECONDS": "10"}
        if numbers.random() < self.faulty_share:
            env |= {"SIM_EXIT_CODE": "1", "SIM_GPU_FAULT": "1"}
        return {
            "name": f"{self.name}-{numbers.randint(100, 999)}",
            "kind": "batch" if self.seconds is not None else "service",
            "image": self.image,
            "command": list(self.command),
            "env": env,
            "cpus": 2.0,
            "memory_bytes": 12 * GIB,
            **self.needs,
        }


_JUPYTER = ("acme/notebook:5.2", ("jupyter", "lab"))
_SERVE = ("acme/serve:1.3", ("python", "serve.py"))
_SESSION_SECONDS = (300, 1200)
SLICE_JOBS: Mapping[str, Sequence[SliceJob]] = {
    "acme": (
        SliceJob("chat-api", *_SERVE, 1, {"gpu_slice": "3g.40gb"}),
        SliceJob("embed-api", *_SERVE, 1, {"gpu_slice": "2g.20gb"}),
        SliceJob("notebook", *_JUPYTER, 5, {"gpu_slice": "1g.10gb"}, _SESSION_SECONDS),
        SliceJob(
            "rerank-api",
            *_SERVE,
            1,
            {"gpu_memory_bytes": 30 * GIB, "gpu_compute": 0.5, "gpu_models": ["A100"]},
        ),
        SliceJob(
            "sketch",
            *_JUPYTER,
            3,
            {"gpu_memory_bytes": 12 * GIB, "gpu_models": ["A100"]},
            _SESSION_SECONDS,
            faulty_share=0.15,
        ),
    ),
    "globex": (
        SliceJob("summarize-api", *_SERVE, 1, {"gpu_slice": "3g.71gb"}),
        SliceJob("notebook", *_JUPYTER, 3, {"gpu_memory_bytes": 16 * GIB}, _SESSION_SECONDS),
    ),
}


def add_policies(session: Session, tenant_id: str, slug: str, *, now: datetime) -> None:
    """Add the partition policies of a demo tenant, as its admin can in the portal."""
    scope = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant_id)
    for policy in POLICIES.get(slug, ()):
        create_policy(session, scope, policy, now=now)
