"""Attempts as jobs of Ray: what is submitted, and what its states mean.

The entry point begins with a short pause: Ray can't cancel a job that waits for resources. It
starts the entry point and ends it at once, which then is still in its pause.
"""

import json
import shlex
import signal
from collections.abc import Mapping
from typing import Any

from jobqueue.executors.ray.client import Answer, last_words
from jobqueue.executors.ray.nodes import ACCELERATOR
from jobqueue.executors.recorded import ExecutorSite, environment_of
from jobqueue.executors.settings import RaySettings
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import ClusterKind, options_of

MAX_RUNTIME_ENV_CHARS = 64 * 1024
MAX_RESOURCES = 50
MAX_MESSAGE_CHARS = 500
PAUSE_SECONDS = 0.2
# Of the resource of a model: as much as Ray itself requests for `accelerator_type`.
ACCELERATOR_SHARE = 0.001
SIGNAL_BASE = 128
NS_PER_MILLISECOND = 1_000_000
_STATES: Mapping[str, ObservedState] = {
    "PENDING": ObservedState.STARTING,
    "RUNNING": ObservedState.RUNNING,
    "SUCCEEDED": ObservedState.SUCCEEDED,
    "FAILED": ObservedState.FAILED,
    "STOPPED": ObservedState.STOPPED,
}
# How the messages of failures begin, by which all versions tell them apart, and what they mean.
# What is in no line here happened to the process or node that runs the job.
_REASONS: Mapping[str, str] = {
    "runtime_env setup failed": "invalid_job",
    "Failed to start supervisor actor": "invalid_job",
    "Job supervisor actor failed to start within": "preempted_by_cluster",
}


class OptionError(Exception):
    """An option of a job can't be used; the text is for the user."""


def problem_of(spec: AttemptSpec, settings: RaySettings) -> str:
    """Return why this cluster can't run a job, or ""."""
    if spec.image and not settings.runs_images:
        return "This Ray cluster runs no images; remove the image."
    if spec.mounts:
        return "Ray mounts no folders; use the paths of the nodes in the command."
    if spec.secrets and not settings.passes_secrets:
        return (
            "Ray shows the variables of a job to all of its users, so jobs with secrets don't run "
            "there. Remove the secrets; an admin can allow them by passes_secrets in [ray]."
        )
    try:
        resources_of(spec)
        has_two = "image_uri" in runtime_env_of(spec) and bool(spec.image)
    except OptionError as error:
        return str(error)
    two_images = "ray.runtime_env has an image_uri, and the job has an image; set one of them."
    return two_images if has_two else ""


def runtime_env_of(spec: AttemptSpec) -> dict[str, Any]:
    """Return the runtime environment that a job asks for.

    Raises:
        OptionError: it is none.
    """
    text = _options(spec).get("runtime_env", "")
    if len(text) > MAX_RUNTIME_ENV_CHARS:
        raise OptionError(f"ray.runtime_env has more than {MAX_RUNTIME_ENV_CHARS} characters.")
    environment = _object("ray.runtime_env", text, example='{"pip": ["torch"]}')
    variables = environment.get("env_vars", {})
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise OptionError("env_vars of ray.runtime_env must be an object of texts.")
    return environment


def resources_of(spec: AttemptSpec) -> dict[str, float]:
    """Return the resources beside CPUs, GPUs and memory that a job asks for.

    Raises:
        OptionError: they are none.
    """
    resources = _object("ray.resources", _options(spec).get("resources", ""), example='{"tpu": 1}')
    if len(resources) > MAX_RESOURCES:
        raise OptionError(f"ray.resources has more than {MAX_RESOURCES} entries.")
    for name, amount in resources.items():
        if name in {"CPU", "GPU", "memory", "object_store_memory"}:
            raise OptionError(f"ray.resources has {name}; use the fields of the job for it.")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount > 0:
            raise OptionError(f"{name} of ray.resources is {amount!r}; it must be above 0.")
    return resources


def request_of(spec: AttemptSpec, site: ExecutorSite, *, submission_id: str) -> Answer:
    """Return the submission of an attempt without an error in its options."""
    environment = runtime_env_of(spec)
    own = environment_of(spec) if spec.image else _environment(spec)
    # Ray's own variable: the time between SIGTERM and SIGKILL.
    own["RAY_JOB_STOP_WAIT_TIME_S"] = str(site.grace_seconds_of(spec))
    environment["env_vars"] = {**environment.get("env_vars", {}), **own}
    if spec.image:
        environment["image_uri"] = spec.image
    request: Answer = {
        "submission_id": submission_id,
        "entrypoint": entrypoint_of(spec),
        "entrypoint_num_cpus": spec.cpus,
        "entrypoint_memory": spec.memory_bytes,
        "runtime_env": environment,
        "metadata": {"job_name": spec.name, "vedette_job": spec.job_id},
    }
    if spec.gpu_uuids:
        request["entrypoint_num_gpus"] = len(spec.gpu_uuids)
    resources = resources_of(spec)
    if spec.gpu_uuids and spec.gpu_models:
        # A task asks for a model by a small part of its resource, of which each node has 1.
        resources = {f"{ACCELERATOR}{spec.gpu_models[0]}": ACCELERATOR_SHARE} | resources
    if resources:
        request["entrypoint_resources"] = resources
    return request


def entrypoint_of(spec: AttemptSpec) -> str:
    """Return the command for the shell, which it replaces: signals and exit codes are its own."""
    folder = f"cd {shlex.quote(spec.working_dir)} && " if spec.working_dir else ""
    return f"sleep {PAUSE_SECONDS}; {folder}exec {shlex.join(spec.command)}"


def observe_job(attempt_id: str, job: Answer) -> AttemptObservation:
    """Return the observation of an attempt from its job."""
    state = _STATES.get(str(job["status"]), ObservedState.STARTING)
    code = job.get("driver_exit_code")
    reason, message = "", ""
    if state is ObservedState.STARTING:
        message = f"Pending in Ray: {words_of(job)}"
    elif state is ObservedState.FAILED:
        reason, message, code = failure_of(job)
    elif state is ObservedState.STOPPED:
        reason, message = "stopped_outside", "The job was stopped in Ray, not through the portal."
    return AttemptObservation(
        attempt_id=attempt_id,
        state=state,
        exit_code=code,
        reason=reason,
        message=message,
        finished_at_ns=(job.get("end_time") or 0) * NS_PER_MILLISECOND or None,
    )


def failure_of(job: Answer) -> tuple[str, str, int | None]:
    """Return the reason, message and exit code of a failed job."""
    code = job.get("driver_exit_code")
    if code is None:
        message = str(job.get("message") or "")
        reason = next(
            (reason for start, reason in _REASONS.items() if message.startswith(start)),
            "node_failed",
        )
        if "failed to start within" in message:
            return reason, f"Ray gave up after its time to start: {words_of(job)}", None
        return reason, f"Ray says: {words_of(job)}", None
    if code < 0:
        hint = " It may have used too much memory." if code == -signal.SIGKILL else ""
        name = signal.strsignal(-code) or f"signal {-code}"
        return "signal", f"The command was ended: {name}.{hint}", SIGNAL_BASE - code
    hint = " Often the nodes lack the command." if code == 127 else ""  # noqa: PLR2004 - of sh
    return "exit_code", f"The command exited with code {code}. See the log.{hint}", code


def is_lost(job: Answer) -> bool:
    """Return whether what ran the job is gone, so that its command may go on for a while."""
    return (
        job["status"] == "FAILED"
        and job.get("driver_exit_code") is None
        and bool(job.get("driver_node_id"))
        and failure_of(job)[0] == "node_failed"
    )


def words_of(job: Answer) -> str:
    """Return what Ray says about a job, without tracebacks and output."""
    return last_words(str(job.get("message") or "no message"))[:MAX_MESSAGE_CHARS]


def _options(spec: AttemptSpec) -> dict[str, str]:
    return options_of(ClusterKind.RAY, spec.cluster_options)


def _environment(spec: AttemptSpec) -> dict[str, str]:
    own = {"VEDETTE_ATTEMPT_ID": spec.attempt_id, "VEDETTE_JOB_ID": spec.job_id}
    return {**spec.env, **spec.secrets, **own}


def _object(name: str, text: str, *, example: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is no JSON: {error}. An example: {example}") from error
    except RecursionError as error:
        raise OptionError(f"{name} is nested too deeply.") from error
    if not isinstance(value, dict):
        raise OptionError(f"{name} must be a JSON object, such as {example}.")
    return value
