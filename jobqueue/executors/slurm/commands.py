"""Slurm by its commands, as the agent's user.

No shell is involved, and variables of the agent's own allocation or of `sbatch` don't count.
"""

import contextlib
import math
import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from tempfile import TemporaryFile

from core.clock import to_ns
from jobqueue.executors.base import (
    AttemptUsage,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
    UncertainError,
)
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.api import (
    ClusterState,
    JobOptions,
    SlurmJob,
    check_version,
    refusal_of,
    unanswered,
)
from jobqueue.executors.slurm.cluster_text import (
    MEBIBYTE,
    gpus_of,
    limit_seconds,
    merged,
    node_state,
    state_words,
)
from protocol.clusters import MAX_NODES, ClusterNode, ClusterQueue

OUTPUT_BYTES = 32 * 2**20
ERROR_LENGTH = 600
# How many jobs an answer of the accounting is about; they are on the command line.
CHUNK_JOBS = 500
CONFIG_SECONDS = 300.0
_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "KRB5CCNAME"),
    *("LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_JWT", "TMPDIR"),
)
_PENDING = re.compile(r"^Jobs pending:\s*(\d+)", re.MULTILINE)
_CONFIG = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_NOISE = re.compile(r"^\w+: (error|fatal): |^(Batch job submission|allocation) failed: ", re.ASCII)
# Widths of fields: longer values would be cut, shorter ones are filled with spaces.
_QUEUE = (
    "JobID:20|,Name:300|,State:20|,Reason:100|,NodeList:300|,StartTime:20|,EndTime:20|,"
    "RestartCnt:10|,exit_code:12|"
)
_SINFO = (
    "NodeList:100|,PartitionName:100|,StateComplete:100|,CPUsState:40|,Memory:20|,AllocMem:20|,"
    "Gres:200|,GresUsed:200|,Reason:200|"
)
_SACCT = "JobID,JobName,State,ExitCode,Start,End,NodeList,Reason"
_WRITES = frozenset({"sbatch", "scancel"})
_GONE = ("invalid job id", "already completed", "already completing", "not pending nor running")


class SlurmCommands:
    """sbatch, squeue, sacct, scancel, scontrol, sinfo, sdiag and sstat."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._config: dict[str, str] = {}
        self._config_at = -math.inf

    def submit(self, options: JobOptions) -> int:
        """Submit a script, which Slurm reads from the standard input."""
        self._configuration()
        arguments = [f"--{name}={value}" for name, value in _sbatch_options(options)]
        printed = self._run(
            "sbatch", "--parsable", "--no-requeue", *arguments, stdin=options.script
        )
        text = printed.strip().splitlines()[-1:] or [""]
        number = text[0].partition(";")[0]
        if not number.isdigit():
            raise UncertainError(f"sbatch printed {printed[:200]!r}, not the job's id.")
        return int(number)

    def jobs(self) -> list[SlurmJob]:
        """Return all jobs of this user that the controller has."""
        printed = self._run("squeue", "--me", "--noheader", "--states=all", "--Format", _QUEUE)
        return [_queued(fields) for fields in _rows(printed, 9)]

    def ended_jobs(self, job_ids: Collection[int]) -> list[SlurmJob]:
        """Return jobs from the accounting."""
        jobs: list[SlurmJob] = []
        for chunk in _chunks([str(job_id) for job_id in sorted(job_ids)]):
            printed = self._run(
                *("sacct", "--noheader", "--parsable", "--allocations"),
                *(f"--format={_SACCT}", f"--jobs={','.join(chunk)}"),
            )
            jobs += [_accounted(fields) for fields in _rows(printed, 8)]
        return jobs

    def signal(self, job_id: int, name: str) -> None:
        """Send a signal to all processes of a job."""
        self._scancel("--full", f"--signal={name}", str(job_id))

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        self._scancel(str(job_id))

    def _scancel(self, *arguments: str) -> None:
        try:
            self._run("scancel", *arguments)
        except InvalidError as error:
            if not any(sign in str(error).lower() for sign in _GONE):
                raise

    def cluster(self) -> ClusterState:
        """Return nodes, partitions and version."""
        config = self._configuration()
        printed = self._run("sinfo", "--Node", "--noheader", "--all", "--Format", _SINFO)
        nodes = merged(_node(fields) for fields in _rows(printed, 9))[:MAX_NODES]
        printed = self._run("sinfo", "--summarize", "--noheader", "--format=%R|%a|%l|%P|")
        queues = [_queue(fields) for fields in _rows(printed, 4)]
        return ClusterState(
            version=config["SLURM_VERSION"],
            name=config.get("ClusterName", ""),
            waiting_jobs=self._waiting(),
            nodes=nodes,
            queues=queues,
        )

    def _waiting(self) -> int:
        try:
            match = _PENDING.search(self._run("sdiag"))
        except ExecutorError:  # only for operators, on some clusters
            return 0
        return int(match[1]) if match else 0

    def _configuration(self) -> dict[str, str]:
        """Return the configuration of the controller, whose version is supported."""
        if time.monotonic() - self._config_at > CONFIG_SECONDS:
            config = dict(_CONFIG.findall(self._run("scontrol", "show", "config")))
            config["SLURM_VERSION"] = check_version(config.get("SLURM_VERSION", ""))
            self._config, self._config_at = config, time.monotonic()
        return self._config

    def usage(self, job_ids: Sequence[int]) -> Mapping[int, tuple[float, AttemptUsage]]:
        """Return CPU seconds and memory of running jobs."""
        usage: dict[int, tuple[float, AttemptUsage]] = {}
        for chunk in _chunks([str(job_id) for job_id in job_ids]):
            printed = self._run(
                *("sstat", "--noheader", "--parsable", "--allsteps", "--noconvert"),
                *("--format=JobID,TRESUsageInTot", f"--jobs={','.join(chunk)}"),
            )
            for step, text in _rows(printed, 2):
                tres = dict(entry.split("=", 1) for entry in text.split(",") if "=" in entry)
                job_id = int(step.partition(".")[0])
                cpu, memory = usage.get(job_id, (0.0, AttemptUsage(cpu_percent=0, memory_bytes=0)))
                total = memory.memory_bytes + _bytes(tres.get("mem", "0"))
                usage[job_id] = (
                    cpu + limit_seconds(tres.get("cpu", "")),
                    AttemptUsage(cpu_percent=0, memory_bytes=total),
                )
        return usage

    def close(self) -> None:
        """Do nothing: each command connects by itself."""

    def environment(self, **changes: str) -> dict[str, str]:
        """Return the variables of a command: none that change its options."""
        names = [name for name in _VARIABLES if name in os.environ]
        return {name: os.environ[name] for name in names} | changes

    def program(self, name: str) -> str:
        """Return the path of a command."""
        folder = self._settings.bin_dir
        path = shutil.which(name, path=str(folder) if folder else None)
        if path is None:
            where = folder or "the PATH of the agent"
            raise ExecutorUnavailableError(
                f"{name} is not in {where}: install Slurm's commands, or set bin_dir in [slurm]."
            )
        return path

    def _run(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Run a command and return what it prints.

        Raises:
            InvalidError: Slurm refuses it.
            UncertainError: a submission has no answer.
            ExecutorUnavailableError: it can't be asked.
        """
        is_write = name == "sbatch"
        # Times without a zone are the command's local ones.
        environ = self.environment() if is_write else self.environment(TZ="UTC")
        # Files, as pipes would stay open in what a command leaves behind.
        with TemporaryFile() as source, TemporaryFile() as out, TemporaryFile() as err:
            source.write(stdin.encode())
            source.seek(0)
            try:
                completed = subprocess.run(  # noqa: S603 - a list of words, without a shell
                    [self.program(name), *arguments],
                    check=False,
                    stdin=source,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    cwd="/",
                    timeout=self._settings.timeout_seconds,
                )
            except subprocess.TimeoutExpired as error:
                text = f"{name} took longer than {self._settings.timeout_seconds:g} s."
                raise (UncertainError if is_write else ExecutorUnavailableError)(text) from error
            except OSError as error:
                raise ExecutorUnavailableError(f"{name} can't be run: {error}") from error
            out.seek(0)
            err.seek(0)
            printed = out.read(OUTPUT_BYTES + 1).decode(errors="replace")
            said = _said(err.read(64 * 1024).decode(errors="replace"))
        if completed.returncode == 0:
            if len(printed) > OUTPUT_BYTES:
                raise ExecutorError(f"{name} printed more than {OUTPUT_BYTES // MEBIBYTE} MiB.")
            return printed
        said = said or f"{name} ended with {completed.returncode}"
        refused = refusal_of(said) if name in _WRITES else unanswered(name, said)
        lost = is_write and ("timed out" in said.lower() or completed.returncode < 0)
        raise UncertainError(str(refused)) if lost else refused


def _sbatch_options(options: JobOptions) -> Iterator[tuple[str, str]]:
    yield from {
        "job-name": options.name,
        "comment": options.comment,
        "chdir": str(options.folder),
        "output": str(options.stdout),
        "error": str(options.stderr),
        "open-mode": "append",
        "input": "/dev/null",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(options.cpus),
        "mem": f"{options.memory_mib}M",
    }.items()
    if options.time_limit_seconds:
        yield "time", str(math.ceil(options.time_limit_seconds / 60))
    for name in (
        *("partition", "account", "qos", "constraint", "reservation", "dependency", "gres"),
    ):
        if value := getattr(options, name):
            yield name, value
    if options.nice is not None:
        yield "nice", str(options.nice)


def _rows(printed: str, count: int) -> Iterator[list[str]]:
    for line in printed.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == count + 1:
            yield fields[:count]


def _chunks(values: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), CHUNK_JOBS):
        yield values[start : start + CHUNK_JOBS]


def _said(text: str) -> str:
    """Return what a command says on its standard error, without its name before each line."""
    lines = []
    for line in text.splitlines():
        while (shorter := _NOISE.sub("", line)) != line:
            line = shorter  # noqa: PLW2901 - two beginnings
        if line.strip() and line.strip() not in lines:
            lines.append(line.strip())
    return "; ".join(lines)[:ERROR_LENGTH]


def _queued(fields: Sequence[str]) -> SlurmJob:
    job_id, name, state, reason, node, started, ended, restarts, status = fields
    word = state.split("+")[0].split()[0] if state else "UNKNOWN"
    code = int(status) if status.isdigit() else 0
    return SlurmJob(
        job_id=int(job_id.partition("_")[0]),
        name=name,
        state=word,
        reason=reason,
        node=node if node not in {"(null)", "n/a"} else "",
        exit_status=(code >> 8, code & 0x7F),
        restarts=int(restarts) if restarts.isdigit() else 0,
        started_at_ns=_ns(started),
        ended_at_ns=_ns(ended),
    )


def _accounted(fields: Sequence[str]) -> SlurmJob:
    job_id, name, state, status, started, ended, node, reason = fields
    word, _, by = state.partition(" by ")
    code, _, number = status.partition(":")
    return SlurmJob(
        job_id=int(re.split(r"\D", job_id)[0]),
        name=name,
        state=word.split("+")[0].split()[0] if word else "UNKNOWN",
        reason=reason if reason != "None" else "",
        node=node if node != "None assigned" else "",
        exit_status=(int(code or 0), int(number or 0)),
        cancelled_by=_user(by),
        started_at_ns=_ns(started),
        ended_at_ns=_ns(ended),
    )


def _user(text: str) -> str:
    """Return the name of a user by id, if this host knows it."""
    with contextlib.suppress(ValueError, KeyError):
        return pwd.getpwuid(int(text)).pw_name
    return f"user {text}" if text else ""


def _ns(text: str) -> int | None:
    try:
        return to_ns(datetime.fromisoformat(text).replace(tzinfo=UTC))
    except ValueError:
        return None


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text)
    if match is None:
        return 0
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def _node(fields: Sequence[str]) -> ClusterNode:
    name, queue, states, cpus, memory, used_memory, gres, used_gres, reason = fields
    state, why = node_state(state_words(states), reason)
    allocated, _, _, total = (float(part) for part in cpus.split("/"))
    gpus, model = gpus_of(gres)
    return ClusterNode(
        name=name,
        state=state,
        reason=why,
        queues=[queue],
        cpus=total,
        memory_bytes=_whole(memory) * MEBIBYTE,
        gpus=gpus,
        gpu_model=model,
        allocated_cpus=allocated,
        allocated_memory_bytes=_whole(used_memory) * MEBIBYTE,
        allocated_gpus=gpus_of(used_gres)[0],
    )


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _queue(fields: Sequence[str]) -> ClusterQueue:
    name, availability, limit, marked = fields
    return ClusterQueue(
        name=name,
        is_default=marked.endswith("*"),
        is_open=availability == "up",
        time_limit_seconds=limit_seconds(limit),
    )
