"""The fields of a new job, made from `protocol.job_spec` by `make generate`."""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class JobFields(TypedDict, total=False):
    """The optional fields of a new job."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cpus: float
    memory_bytes: int
    shared_memory_bytes: int
    working_dir: str
    mounts: Sequence[Mapping[str, object]]
    ports: Sequence[Mapping[str, object]]
    time_limit_seconds: int
    stop_grace_seconds: int
    health_check: Mapping[str, object] | None
    cluster_options: Mapping[str, str]
    gpus: int
    gpu_slice: str
    gpu_memory_bytes: int
    gpu_compute: float
    gpu_models: Sequence[str]
    required_labels: Mapping[str, str]
    labels: Mapping[str, str]
    priority: int
    is_preemptible: bool
    max_retries: int
    retry_on: Sequence[str]
    idle_gpu_percent: int
    idle_gpu_seconds: int
    notify: Sequence[str]
    instances: int
    autoscaling: Mapping[str, object] | None
    nodes: int
    on_member_loss: str
    framework: str
    network: str
    uses_rdma: bool
    datasets: Sequence[Mapping[str, object]]
    outputs: Sequence[str]
    max_gpu_hour_price: float
    rental: Mapping[str, str]
    kind: str
    secrets: Mapping[str, str]
    secrets_from: str | None
    after_ok: Sequence[str]
    after_any: Sequence[str]
    array: str
    container_policy: str | None
    appliance_id: str | None
    project: str | None
