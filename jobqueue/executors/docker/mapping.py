"""Map attempts to Docker's API and back: pure functions over the engine's JSON."""

import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from core.clock import to_ns
from jobqueue.executors.base import ATTEMPT_LABEL, JOB_LABEL, OWNER_LABEL, STOPPED, AttemptUsage
from jobqueue.executors.confinement import PIDS_LIMIT, confinement_options, without_host_devices
from jobqueue.executors.docker.devices import (
    UNLIMITED_MEMORY,
    UUID_PREFIX,
    device_nodes,
    rdma_nodes,
)
from protocol.attempts import AttemptObservation, AttemptSpec, Health, ObservedState, StopReason
from protocol.gangs import JobNetwork
from protocol.job_spec import HealthCheck, HealthCheckKind

NANO = 1_000_000_000
# More than the spool's limit, so that the spool can be filled again.
ENGINE_LOG_SIZE = "64m"
CDI_KIND = "nvidia.com/gpu"
LOOPBACK = "127.0.0.1"
HOST_NETWORK, JOINED_NETWORK = "host", "container:"
PORT_LABEL = "io.vedette.port"
HEALTH_LABEL = "io.vedette.health-check"
PULL_LABEL = "io.vedette.pull"
STOP_GRACE_LABEL = "io.vedette.stop-grace-seconds"
# A process that a signal ended has this plus the signal's number as exit code.
SIGNAL_BASE = 128
KILLED_EXIT_CODE = SIGNAL_BASE + signal.SIGKILL
# The engine marks a container as out of memory within this time of its exit.
OUT_OF_MEMORY_SECONDS = 2
NO_INFO: Mapping[str, Any] = {}
_NO_HEALTH = (Health.UNKNOWN, "")
_ENGINE_HEALTH = {
    "starting": (Health.STARTING, ""),
    "healthy": (Health.HEALTHY, ""),
    "unhealthy": (Health.UNHEALTHY, "The health check fails."),
}


def container_name(attempt_id: str) -> str:
    """Return the container's name; the engine rejects duplicates, so nothing runs twice."""
    return f"vedette-{attempt_id}"


def container_options(
    spec: AttemptSpec,
    *,
    owner: str,
    pids_limit: int = PIDS_LIMIT,
    engine: Mapping[str, Any] = NO_INFO,
) -> dict[str, Any]:
    """Return the keyword arguments that create the container of an attempt.

    `NVIDIA_VISIBLE_DEVICES=void` hides the GPUs from a CPU job where NVIDIA's runtime is the
    default. AMD GPUs are device files. Shared memory is half of the job's memory unless the job
    says otherwise, because the engine's default of 64 MiB is too little for data loaders.

    Args:
        spec: the attempt.
        owner: the appliance's id.
        pids_limit: most processes in the container.
        engine: `docker info`, which tells how it passes GPUs.
    """
    amd_uuids = [uuid for uuid in spec.gpu_uuids if uuid.startswith(UUID_PREFIX)]
    nvidia_uuids = [uuid for uuid in spec.gpu_uuids if uuid not in amd_uuids]
    environment = {
        **without_host_devices({**spec.env, **spec.secrets}),
        "VEDETTE_ATTEMPT_ID": spec.attempt_id,
        "VEDETTE_JOB_ID": spec.job_id,
        "NVIDIA_VISIBLE_DEVICES": ",".join(nvidia_uuids) or "void",
    }
    shared_memory_bytes = spec.shared_memory_bytes or spec.memory_bytes // 2
    options: dict[str, Any] = {
        "image": spec.image,
        "command": list(spec.command) or None,
        "name": container_name(spec.attempt_id),
        "environment": environment,
        "labels": {
            ATTEMPT_LABEL: spec.attempt_id,
            JOB_LABEL: spec.job_id,
            OWNER_LABEL: owner,
        },
        "nano_cpus": int(spec.cpus * NANO),
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        # The host's shared memory has its own size.
        "shm_size": None if spec.uses_host_ipc else shared_memory_bytes,
        "log_config": LogConfig(type="json-file", config={"max-size": ENGINE_LOG_SIZE}),
        **_shared_memory(spec),
        **confinement_options(
            spec.container_policy,
            pids_limit=pids_limit,
            uses_host_ipc=spec.uses_host_ipc,
            uses_rdma=spec.uses_rdma,
        ),
    }
    if nvidia_uuids:
        options["device_requests"] = [gpu_request(nvidia_uuids, engine)]
    if amd_uuids:
        options["devices"] = device_nodes(amd_uuids)
    if spec.stop_grace_seconds:
        options["labels"][STOP_GRACE_LABEL] = str(spec.stop_grace_seconds)
    if spec.is_service:
        options["restart_policy"] = {"Name": "unless-stopped"}
    if spec.working_dir:
        options["working_dir"] = spec.working_dir
    if spec.mounts:
        options["mounts"] = [
            Mount(mount.target, mount.source, type="bind", read_only=mount.is_read_only)
            for mount in spec.mounts
        ]
    check = spec.health_check
    if spec.uses_rdma:
        options["devices"] = [*options.get("devices", ()), *rdma_nodes()]
        options["ulimits"] = [Ulimit(name="memlock", soft=UNLIMITED_MEMORY, hard=UNLIMITED_MEMORY)]
    options |= _network_options(spec)
    names = {str(port.container_port): port.name for port in spec.ports}
    options["labels"] |= {
        f"{PORT_LABEL}.{port}": name or port
        for port, name in names.items()
        if name or spec.network == JobNetwork.HOST
    }
    if check is not None:
        options["labels"][HEALTH_LABEL] = msgspec.json.encode(check).decode()
    if check is not None and check.kind is HealthCheckKind.COMMAND:
        options["healthcheck"] = {
            "test": ["CMD-SHELL", check.command],
            "interval": int(check.interval_seconds * NANO),
            "timeout": int(check.timeout_seconds * NANO),
            "start_period": int(check.grace_seconds * NANO),
            "retries": check.max_failures,
        }
    return options


def _network_options(spec: AttemptSpec) -> dict[str, Any]:
    """Return the network of a container, and the ports that the engine publishes of it.

    It publishes none in the host's network, where they are already, and none in a gang's, where
    the agent forwards them.
    """
    if spec.network == JobNetwork.HOST:
        return {"network_mode": HOST_NETWORK}
    if spec.network == JobNetwork.GANG:
        return {"network_mode": f"{JOINED_NETWORK}{spec.sandbox}" if spec.sandbox else "none"}
    check = spec.health_check
    numbers = {port.container_port for port in spec.ports} | (
        {check.port} - {0} if check else set()
    )
    if not numbers:
        return {}
    return {"ports": {f"{number}/tcp": (LOOPBACK, None) for number in sorted(numbers)}}


def joins_network(inspected: Mapping[str, Any]) -> bool:
    """Return whether a container joins the network of another one."""
    return str(inspected["HostConfig"].get("NetworkMode", "")).startswith(JOINED_NETWORK)


def _shared_memory(spec: AttemptSpec) -> dict[str, Any]:
    """Return the size of /dev/shm; that of the host has its own."""
    if spec.uses_host_ipc:
        return {}
    return {"shm_size": spec.shared_memory_bytes or spec.memory_bytes // 2}


def gpu_request(uuids: list[str], engine: Mapping[str, Any]) -> DeviceRequest:
    """Return the request for these GPUs: by CDI if the engine lists them, else by NVIDIA's runtime.

    Source: Docker's documentation, "Container Device Interface"; `DiscoveredDevices` of
    `docker info` since engine 28.2.
    """
    listed = {
        device.get("ID", "")
        for device in engine.get("DiscoveredDevices") or ()
        if device.get("Source") == "cdi"
    }
    devices = [f"{CDI_KIND}={uuid}" for uuid in uuids]
    if listed.issuperset(devices):
        return DeviceRequest(driver="cdi", device_ids=devices)
    return DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])


def observe_container(
    attempt_id: str, inspected: Mapping[str, Any], *, stop_reason: StopReason | None
) -> AttemptObservation:
    """Return the observation of an attempt from the inspected container."""
    state = inspected["State"]
    started_at_ns = engine_time_ns(state.get("StartedAt", ""))
    match state["Status"]:
        case "created":
            return AttemptObservation(
                attempt_id=attempt_id, state=ObservedState.STARTING, **_pull_times(inspected)
            )
        case "exited" | "dead" | "removing":
            return _ended(attempt_id, inspected, stop_reason=stop_reason)
        case "restarting":
            health, message = Health.RESTARTING, f"Restarting after exit code {state['ExitCode']}."
        case _:
            health, message = _ENGINE_HEALTH.get(state.get("Health", {}).get("Status"), _NO_HEALTH)
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.RUNNING,
        message=message,
        started_at_ns=started_at_ns,
        endpoints=_endpoints(inspected),
        health=health,
        restarts=int(inspected.get("RestartCount", 0)),
        **_pull_times(inspected),
    )


def pull_label(observation: AttemptObservation) -> dict[str, str]:
    """Return the label of a container whose image was pulled, with the times of that."""
    times = observation.pull_began_at_ns, observation.pull_ended_at_ns
    return {PULL_LABEL: "-".join(map(str, times))} if None not in times else {}


def _pull_times(inspected: Mapping[str, Any]) -> dict[str, Any]:
    text = (inspected.get("Config", {}).get("Labels") or {}).get(PULL_LABEL, "")
    began, _, ended = text.partition("-")
    if not (began.isdecimal() and ended.isdecimal()):
        return {}
    return {"pull_began_at_ns": int(began), "pull_ended_at_ns": int(ended)}


def health_check_of(inspected: Mapping[str, Any]) -> HealthCheck | None:
    """Return the check that a container's attempt has."""
    text = (inspected.get("Config", {}).get("Labels") or {}).get(HEALTH_LABEL)
    return msgspec.json.decode(text, type=HealthCheck) if text else None


def check_address(inspected: Mapping[str, Any], check: HealthCheck) -> str:
    """Return where the port of a check is published, or "" while it is not."""
    if _is_in_host_network(inspected):
        return f"{LOOPBACK}:{check.port}"
    published = inspected.get("NetworkSettings", {}).get("Ports") or {}
    bindings = published.get(f"{check.port}/tcp")
    return f"{bindings[0]['HostIp']}:{bindings[0]['HostPort']}" if bindings else ""


def _endpoints(inspected: Mapping[str, Any]) -> dict[str, str]:
    published = inspected.get("NetworkSettings", {}).get("Ports") or {}
    labels = inspected.get("Config", {}).get("Labels") or {}
    if _is_in_host_network(inspected):
        return {
            name: f"{LOOPBACK}:{label.removeprefix(f'{PORT_LABEL}.')}"
            for label, name in labels.items()
            if label.startswith(f"{PORT_LABEL}.")
        }
    endpoints = {}
    for port, bindings in published.items():
        number = port.partition("/")[0]
        if bindings:
            name = labels.get(f"{PORT_LABEL}.{number}", number)
            endpoints[name] = f"{bindings[0]['HostIp']}:{bindings[0]['HostPort']}"
    return endpoints


def _is_in_host_network(inspected: Mapping[str, Any]) -> bool:
    return bool(inspected.get("HostConfig", {}).get("NetworkMode") == HOST_NETWORK)


def usage_between(
    stats: Mapping[str, Any], before: Mapping[str, Any] | None, *, started_at_ns: int
) -> AttemptUsage | None:
    """Return the usage between two stats of the engine, or since the start with one only.

    Memory is counted as `docker stats` does, without inactive page cache.
    """
    memory = stats.get("memory_stats", {})
    read_at_ns = engine_time_ns(stats.get("read", ""))
    if "usage" not in memory or read_at_ns is None:
        return None
    details = memory.get("stats", {})
    cache = details.get("inactive_file", details.get("total_inactive_file", 0))
    since_ns, cpu_before = started_at_ns, 0
    if before is not None:
        since_ns = engine_time_ns(before["read"]) or started_at_ns
        cpu_before = before["cpu_stats"]["cpu_usage"]["total_usage"]
    cpu_ns = stats["cpu_stats"]["cpu_usage"]["total_usage"] - cpu_before
    elapsed_ns = max(1, read_at_ns - since_ns)
    return AttemptUsage(
        cpu_percent=max(0.0, round(100 * cpu_ns / elapsed_ns, 1)),
        memory_bytes=max(0, memory["usage"] - cache),
    )


def engine_time_ns(text: str) -> int | None:
    """Return nanoseconds since the epoch for `2026-11-21T11:58:29.372998608Z`.

    The engine's zero time, year 1, means "not yet" and gives None.
    """
    if not text or text.startswith("0001-"):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    second_at = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return to_ns(second_at) + int(fraction.ljust(9, "0")[:9] or 0)


def start_failure(message: str) -> tuple[str, str]:
    """Return reason and message of a container that could not be started.

    `invalid_job` is the job's own fault; `start_failed` may happen to any job on this appliance.
    """
    lowered = message.lower()
    if "cannot join network" in lowered or "no such container: vedette-net-" in lowered:
        return "network_failed", f"The network of its gang is gone: {message}."
    if "/dev/infiniband" in lowered:
        advice = "Load the drivers of RDMA on the appliance, or submit the job without uses_rdma."
        return "start_failed", f"The appliance has no RDMA devices: {message}. {advice}"
    if "device driver" in lowered or "cdi device" in lowered:
        advice = "Install the NVIDIA container toolkit on the appliance."
        return "start_failed", f"Docker can't pass GPUs to containers: {message}. {advice}"
    if "bind source path" in lowered:
        return "invalid_job", f"A data path is missing on the appliance: {message}."
    if "executable file not found" in lowered or "no such file" in lowered:
        return "invalid_job", f"Command not found in the image: {message}. Check the command."
    return "start_failed", f"Can't start the container: {message}."


def signal_of(exit_code: int) -> str | None:
    """Return the signal that ended a process, by the convention of shells and Docker, or None."""
    try:
        return signal.Signals(exit_code - SIGNAL_BASE).name
    except ValueError:
        return None


def _ended(
    attempt_id: str, inspected: Mapping[str, Any], *, stop_reason: StopReason | None
) -> AttemptObservation:
    state = inspected["State"]
    exit_code = int(state["ExitCode"])
    is_service = inspected["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    outcome, reason, message = ObservedState.SUCCEEDED, "", ""
    if stop_reason is not None:
        (outcome, message), reason = STOPPED[stop_reason], stop_reason.value
    elif is_service:
        outcome, reason = ObservedState.STOPPED, "stopped_outside"
        message = "The container was stopped on the appliance, not through the portal."
    elif state.get("OOMKilled"):
        limit = f"{inspected['HostConfig'].get('Memory', 0) // 2**20} MiB"
        if exit_code == 0:
            # The command has the last word: it may have expected the end of a child.
            message = f"Succeeded, but a process in it was killed for memory above {limit}."
        else:
            outcome, reason = ObservedState.FAILED, "out_of_memory"
            message = f"Out of memory: a process was killed above {limit}. Request more memory."
    elif (signal_name := signal_of(exit_code)) is not None:
        outcome, reason = ObservedState.FAILED, "signal"
        message = f"Killed by {signal_name}, not by the agent. See the log."
    elif exit_code:
        outcome, reason = ObservedState.FAILED, "exit_code"
        message = f"The command exited with code {exit_code}. See the log."
    return AttemptObservation(
        attempt_id=attempt_id,
        state=outcome,
        exit_code=exit_code,
        reason=reason,
        message=message,
        started_at_ns=engine_time_ns(state.get("StartedAt", "")),
        finished_at_ns=engine_time_ns(state.get("FinishedAt", "")),
    )


def is_cause_open(observation: AttemptObservation, *, now_ns: int) -> bool:
    """Return whether the engine may yet say that a killed container was out of memory.

    It learns so by another event than the exit, which may come first.
    """
    finished_at_ns = observation.finished_at_ns or 0
    is_killed = observation.reason == "signal" and observation.exit_code == KILLED_EXIT_CODE
    return is_killed and 0 <= now_ns - finished_at_ns < OUT_OF_MEMORY_SECONDS * NANO


def explain(error: Exception) -> str:
    """Return what the engine says of an error, without the SDK's words around it."""
    return str(getattr(error, "explanation", None) or error).strip().rstrip(".")
