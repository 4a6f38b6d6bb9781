"""The confinement of jobs' containers, by the name of a policy.

Under every policy a container has its own namespaces (but for IPC, a client of MPS has the host's),
no devices but its GPUs, the engine's seccomp filter, a limit of processes, and no way to gain
privileges (`no-new-privileges`). Policies differ in the capabilities of root in the container.

NVIDIA's container toolkit gives a container devices of the host by variables, which it reads from
the job and from the image, so that each has a value here.

Sources: Docker's documentation, "Runtime privilege and Linux capabilities"; Kubernetes' Pod
Security Standards, which this follows;
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

from collections.abc import Mapping
from typing import Any

from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.gangs import JobNetwork
from protocol.job_spec import ContainerPolicy

PIDS_LIMIT = 4096
# The capabilities that each policy leaves to root. `standard` has those of Docker without NET_RAW
# (raw sockets), MKNOD (device files) and AUDIT_WRITE (the kernel's audit log).
CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    ContainerPolicy.RESTRICTED: (),
    ContainerPolicy.STANDARD: (
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ),
}
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_DEFAULT_DRIVER = ("compute", "utility")
# The driver's capabilities in a container: all but the displays of the host.
_ALLOWED_DRIVER = frozenset({"compute", "compat32", "graphics", "ngx", "utility", "video"})
DEVICE_VARIABLES: Mapping[str, str] = {
    "NVIDIA_GDRCOPY": "disabled",
    "NVIDIA_GDS": "disabled",
    "NVIDIA_IMEX_CHANNELS": "void",
    "NVIDIA_MIG_CONFIG_DEVICES": "",
    "NVIDIA_MIG_MONITOR_DEVICES": "",
    "NVIDIA_MOFED": "disabled",
    "NVIDIA_NVSWITCH": "disabled",
    "NVIDIA_VISIBLE_DEVICES": "void",
}
"""Each with the value that gives nothing."""


def confinement_options(
    policy: str, *, pids_limit: int, uses_host_ipc: bool = False, uses_rdma: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments that confine a container.

    What the engine's own settings could widen is stated. `uses_host_ipc` opens the host's shared
    memory to it, as MPS needs it, under every policy; `uses_rdma` lets it lock memory, which
    transfers by RDMA need.

    Raises:
        KeyError: the policy is unknown.
    """
    return {
        "privileged": False,
        "cap_drop": ["ALL"],
        "cap_add": [*CAPABILITIES[policy], *(["IPC_LOCK"] if uses_rdma else [])],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": pids_limit,
        "ipc_mode": "host" if uses_host_ipc else "private",
        "cgroupns": "private",
    }


def docker_parameters(spec: AttemptSpec, *, pids_limit: int) -> list[dict[str, str]]:
    """Return the same as options of `docker run`, as the schedulers of Mesos pass them on."""
    options = [
        ("cap-drop", "ALL"),
        *(("cap-add", name) for name in CAPABILITIES[spec.container_policy]),
        ("security-opt", "no-new-privileges:true"),
        ("pids-limit", str(pids_limit)),
        ("ipc", "private"),
        ("shm-size", str(spec.shared_memory_bytes or spec.memory_bytes // 2)),
    ]
    if spec.working_dir:
        options.append(("workdir", spec.working_dir))
    return [{"key": key, "value": value} for key, value in options]


def has_seccomp(engine: Mapping[str, Any]) -> bool:
    """Return whether an engine filters system calls by default, from its `docker info`."""
    options = [option.split(",") for option in engine.get("SecurityOptions") or ()]
    return any(
        "name=seccomp" in option and "profile=unconfined" not in option for option in options
    )


def unknown_policy(spec: AttemptSpec) -> AttemptObservation | None:
    """Return the failure of an attempt whose policy or network this agent does not know."""
    if spec.network not in tuple(JobNetwork):
        return AttemptObservation(
            attempt_id=spec.attempt_id,
            state=ObservedState.FAILED,
            reason="invalid_job",
            message=f"This agent does not know the network {spec.network!r}. Update the agent.",
        )
    if spec.container_policy in CAPABILITIES:
        return None
    return AttemptObservation(
        attempt_id=spec.attempt_id,
        state=ObservedState.FAILED,
        reason="invalid_job",
        message=f"This agent does not know the container policy {spec.container_policy!r}. "
        "Update the agent, or submit the job with another policy.",
    )


def without_host_devices(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment by which a container gets no devices of the host."""
    wanted = environment.get(DRIVER_CAPABILITIES, "").split(",")
    allowed = [name for name in wanted if name in _ALLOWED_DRIVER]
    capabilities = ",".join(allowed or _DEFAULT_DRIVER)
    return {**environment, **DEVICE_VARIABLES, DRIVER_CAPABILITIES: capabilities}
