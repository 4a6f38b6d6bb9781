"""Between attempts and Docker's own words: what to ask the engine for, and what its answers mean.

Pure functions over the engine's JSON.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from docker.types import DeviceRequest, LogConfig

from core.clock import to_ns
from jobqueue.executors.amd_devices import UUID_PREFIX, device_nodes
from jobqueue.executors.base import (
    ATTEMPT_LABEL,
    JOB_LABEL,
    AttemptObservation,
    AttemptSpec,
    AttemptUsage,
    ObservedState,
)

NANO = 1_000_000_000
# More than the spool keeps of an attempt, so that the whole spool can be read again.
ENGINE_LOG_SIZE = "64m"


def container_name(attempt_id: str) -> str:
    """Return the container's name; the engine refuses a second one, so nothing runs twice."""
    return f"vedette-{attempt_id}"


def container_options(spec: AttemptSpec) -> dict[str, Any]:
    """Return the keyword arguments that create the container of an attempt.

    `NVIDIA_VISIBLE_DEVICES=void` keeps a CPU job away from the GPUs where NVIDIA's runtime is the
    default one. AMD's GPUs are device files. Shared memory is half of the job's memory: the
    engine's 64 MiB starve data loaders.
    """
    amd_uuids = [uuid for uuid in spec.gpu_uuids if uuid.startswith(UUID_PREFIX)]
    nvidia_uuids = [uuid for uuid in spec.gpu_uuids if uuid not in amd_uuids]
    environment = {
        **spec.env,
        "VEDETTE_ATTEMPT_ID": spec.attempt_id,
        "VEDETTE_JOB_ID": spec.job_id,
        "NVIDIA_VISIBLE_DEVICES": ",".join(nvidia_uuids) or "void",
    }
    options: dict[str, Any] = {
        "image": spec.image,
        "command": list(spec.command) or None,
        "name": container_name(spec.attempt_id),
        "environment": environment,
        "labels": {ATTEMPT_LABEL: spec.attempt_id, JOB_LABEL: spec.job_id},
        "nano_cpus": int(spec.cpus * NANO),
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        "shm_size": spec.memory_bytes // 2,
        "log_config": LogConfig(type="json-file", config={"max-size": ENGINE_LOG_SIZE}),
    }
    if nvidia_uuids:
        options["device_requests"] = [
            DeviceRequest(device_ids=nvidia_uuids, capabilities=[["gpu"]])
        ]
    if amd_uuids:
        options["devices"] = device_nodes(amd_uuids)
    if spec.is_service:
        options["restart_policy"] = {"Name": "unless-stopped"}
    return options


def observe_container(
    attempt_id: str, inspected: Mapping[str, Any], *, is_stop_asked: bool
) -> AttemptObservation:
    """Return what the engine's description of a container says of its attempt."""
    state = inspected["State"]
    started_at_ns = engine_time_ns(state.get("StartedAt", ""))
    match state["Status"]:
        case "created":
            return AttemptObservation(attempt_id=attempt_id, state=ObservedState.STARTING)
        case "exited" | "dead" | "removing":
            return _ended(attempt_id, inspected, is_stop_asked=is_stop_asked)
        case "restarting":
            message = f"Restarting after exit code {state['ExitCode']}."
        case _:
            message = ""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.RUNNING,
        message=message,
        started_at_ns=started_at_ns,
    )


def usage_between(
    stats: Mapping[str, Any], before: Mapping[str, Any] | None, *, started_at_ns: int
) -> AttemptUsage | None:
    """Return the use between two of the engine's readings; since its start when there is one only.

    Memory is counted as `docker stats` does: page cache that can be dropped is left out.
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


def pull_fault(image: str, message: str) -> tuple[str, str]:
    """Return reason and sentence for a pull of `image` refused with `message`."""
    lowered = message.lower()
    missing = ("not found", "manifest unknown", "does not exist", "access denied", "no such image")
    if any(sign in lowered for sign in missing):
        return "image_not_found", f"There is no image {image!r}: {message}. Check its name and tag."
    return "start_failed", f"The image {image!r} could not be pulled: {message}."


def start_fault(message: str) -> tuple[str, str]:
    """Return reason and sentence for a container that could not be started."""
    lowered = message.lower()
    if "device driver" in lowered:
        advice = "Install the NVIDIA container toolkit on the appliance."
        return "start_failed", f"The engine can't give GPUs to containers: {message}. {advice}"
    if "executable file not found" in lowered or "no such file" in lowered:
        return "start_failed", f"The command is not in the image: {message}."
    return "start_failed", f"The container could not be started: {message}."


def _ended(
    attempt_id: str, inspected: Mapping[str, Any], *, is_stop_asked: bool
) -> AttemptObservation:
    state = inspected["State"]
    exit_code = int(state["ExitCode"])
    is_service = inspected["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    outcome, reason, message = ObservedState.SUCCEEDED, "", ""
    if is_stop_asked:
        outcome, reason = ObservedState.STOPPED, "stopped_by_user"
        message = "The attempt was stopped."
    elif is_service:
        outcome, reason = ObservedState.STOPPED, "stopped_outside"
        message = "The service's container was stopped on the appliance itself."
    elif state.get("OOMKilled"):
        limit = inspected["HostConfig"].get("Memory", 0)
        outcome, reason = ObservedState.FAILED, "out_of_memory"
        message = f"The attempt needed more than its {limit // 2**20} MiB of memory and was killed."
    elif exit_code:
        outcome, reason = ObservedState.FAILED, "exit_code"
        message = f"The command ended with exit code {exit_code}."
    return AttemptObservation(
        attempt_id=attempt_id,
        state=outcome,
        exit_code=exit_code,
        reason=reason,
        message=message,
        started_at_ns=engine_time_ns(state.get("StartedAt", "")),
        finished_at_ns=engine_time_ns(state.get("FinishedAt", "")),
    )
