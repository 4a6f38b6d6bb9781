"""The script and the options of an attempt, as Slurm gets them.

Slurm stores the script and shows it to others, so variables and secrets are in a file beside it.
"""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from jobqueue.executors.base import InvalidError
from jobqueue.executors.recorded import environment_of
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.api import JobOptions
from jobqueue.executors.slurm.workplace import Workplace
from protocol.attempts import AttemptSpec
from protocol.clusters import ClusterKind, options_of
from protocol.job_spec import Mount

MEBIBYTE = 2**20
# How a script ends that found the claim of its attempt made.
REFUSED = 75
# A registry's name has a dot or a port.
_REGISTRY = re.compile(r"(localhost|[^/]*[.:][^/]*)/(.+)")
_SCRIPT = """#!/bin/sh
# Attempt {attempt} of Vedette's job {job}.
folder={folder}
me="$SLURM_JOB_ID:${{SLURM_RESTART_COUNT:-0}}:$SLURMD_NODENAME:${{SLURM_JOB_GPUS:-}}"
me="$me:$$-$(date +%s%N)"
# Whoever makes this link first runs; any other job of the attempt, and a second run, end here.
# Slurm may launch a job twice when its daemon on the node dies. NFS may say that a link of ours is
# there already.
if ! ln -sn "$me" "$folder/claim.{number}" 2>/dev/null; then
    [ "$(readlink "$folder/claim.{number}")" = "$me" ] || exit {refused}
fi
. "$folder/env.{number}" || exit 1
rm -f "$folder/env.{number}"
# What runs below gets the signal; this shell waits for its end.
trap : TERM
if cd {working_dir}; then
    {command}
    code=$?
else
    code=1
fi
echo "$code" > "$folder/exit.{number}.new" && mv "$folder/exit.{number}.new" "$folder/exit.{number}"
exit "$code"
"""


def env_text(spec: AttemptSpec) -> str:
    """Return the variables as a script that sets them."""
    lines = [
        f"export {name}={shlex.quote(value)}\n" for name, value in environment_of(spec).items()
    ]
    return "".join(lines)


def problem_of(spec: AttemptSpec, settings: SlurmSettings) -> str:
    """Return why an attempt can't run on this cluster, or ""."""
    if not spec.command:
        return "Slurm runs a command: set one, as an image's own is not used."
    options = options_of(ClusterKind.SLURM, spec.cluster_options)
    for name, value in options.items():
        if not value.isprintable():
            return f"slurm.{name} has a character that can't be printed; remove it."
    nice = options.get("nice", "0")
    if not re.fullmatch(r"\d{1,9}", nice):
        return f"slurm.nice = {nice!r}: expected a number from 0 on."
    if spec.image and settings.containers == "none":
        return (
            "This Slurm cluster runs scripts, not images: leave the image empty, or set containers "
            "in the table [slurm] of the connector."
        )
    if spec.shared_memory_bytes and not spec.image:
        return "Without an image, a job has the node's /dev/shm; remove shared_memory_bytes."
    return _mount_problem(spec, settings)


def _mount_problem(spec: AttemptSpec, settings: SlurmSettings) -> str:
    if spec.mounts and spec.image and settings.containers == "oci":
        return "The mounts of an OCI bundle are in its config.json; remove those of the job."
    for mount in spec.mounts:
        if not spec.image and mount.source != mount.target:
            return (
                f"Without an image, {mount.source} can't be mounted at {mount.target}: use the "
                "path of the node."
            )
        if spec.image and any(sign in f"{mount.source}{mount.target}" for sign in ",:"):
            return f"{mount.source} can't be mounted: pyxis takes no paths with : or a comma."
    return ""


def job_options(
    spec: AttemptSpec, settings: SlurmSettings, place: Workplace, *, name: str, number: int
) -> JobOptions:
    """Return what Slurm is asked for.

    Raises:
        InvalidError: an option of the job is wrong.
    """
    options = options_of(ClusterKind.SLURM, spec.cluster_options)
    return JobOptions(
        name=name,
        script=script_of(spec, settings, place.of(spec.attempt_id), number=number),
        folder=place.of(spec.attempt_id),
        stdout=place.output(spec.attempt_id, number, "out"),
        stderr=place.output(spec.attempt_id, number, "err"),
        cpus=max(1, math.ceil(spec.cpus)),
        memory_mib=-(-spec.memory_bytes // MEBIBYTE),
        gres=gres_of(len(spec.gpu_uuids), options.get("gres", ""), spec.gpu_models),
        time_limit_seconds=spec.time_limit_seconds,
        comment=f"Vedette: {_printable(spec.name)} ({spec.job_id})",
        partition=options.get("partition") or settings.partition,
        account=options.get("account") or settings.account,
        qos=options.get("qos") or settings.qos,
        constraint=options.get("constraint", ""),
        reservation=options.get("reservation", ""),
        dependency=options.get("dependency", ""),
        nice=int(options["nice"]) if options.get("nice") else None,
    )


def gres_of(gpus: int, extra: str, models: Sequence[str] = ()) -> str:
    """Return the generic resources: GPUs by number, and others by the option.

    `gpu:TYPE` in the option is the type of the job's GPUs. Otherwise it is the first of the models
    that the job may get, as a job of Slurm has one type at most.
    """
    gpu, others = f"gpu:{models[0]}:{gpus}" if models else f"gpu:{gpus}", []
    for entry in (part.strip() for part in extra.split(",") if part.strip()):
        words = entry.split(":")
        if words[0] != "gpu":
            others.append(entry)
            continue
        count = words[-1] if words[-1].isdigit() else str(gpus)
        if not gpus or count != str(gpus) or len(words) < 2:  # noqa: PLR2004 - gpu:TYPE
            raise InvalidError(
                f"slurm.gres has {entry}, and the job {gpus} GPUs: set the job's gpus, and here "
                "only their type, such as gpu:a100."
            )
        if words[1].isdigit():
            continue
        if models and words[1].lower() not in map(str.lower, models):
            raise InvalidError(
                f"slurm.gres has {entry}, and the GPUs that the job requests are here: "
                f"{', '.join(models)}. Remove one of them."
            )
        gpu = f"gpu:{words[1]}:{gpus}"
    return ",".join([*([gpu] if gpus else []), *others])


def script_of(spec: AttemptSpec, settings: SlurmSettings, folder: Path, *, number: int) -> str:
    """Return the script of a submission."""
    directory = shlex.quote(spec.working_dir) if spec.working_dir else '"${HOME:-/}"'
    return _SCRIPT.format(
        attempt=spec.attempt_id,
        job=_printable(spec.job_id),
        folder=shlex.quote(str(folder)),
        number=number,
        refused=REFUSED,
        working_dir='"${HOME:-/}"' if spec.image else directory,
        command=shlex.join(command_of(spec, settings)),
    )


def command_of(spec: AttemptSpec, settings: SlurmSettings) -> list[str]:
    """Return the command, in its container if it has an image."""
    if not spec.image:
        return list(spec.command)
    step = ["srun", "--ntasks=1", f"--cpus-per-task={max(1, math.ceil(spec.cpus))}"]
    if settings.containers == "oci":
        return [*step, f"--container={bundle_of(spec.image, settings)}", *spec.command]
    step += [f"--container-image={pyxis_image(spec.image)}", "--no-container-mount-home"]
    if spec.mounts:
        step.append(f"--container-mounts={','.join(map(_pyxis_mount, spec.mounts))}")
    if spec.working_dir:
        step.append(f"--container-workdir={spec.working_dir}")
    return [*step, *spec.command]


def bundle_of(image: str, settings: SlurmSettings) -> Path:
    """Return the folder of an image's OCI bundle.

    Raises:
        InvalidError: the name leads out of the folder.
    """
    folder = settings.image_dir or Path()
    bundle = folder / image
    if ".." in bundle.parts or image.startswith("/"):
        raise InvalidError(f"{image!r} is no name of an image in {folder}.")
    return bundle


def pyxis_image(image: str) -> str:
    """Return an image as Enroot writes it: `registry#name:tag`; paths of files stay."""
    match = _REGISTRY.fullmatch(image)
    return f"{match[1]}#{match[2]}" if match and not image.startswith(("/", ".")) else image


def _pyxis_mount(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'ro' if mount.is_read_only else 'rw'}"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)[:200]
