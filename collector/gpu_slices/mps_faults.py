"""Fatal faults on GPUs that MPS shares: a fault of one client ends all of them.

The server does not say which client it was, apart from lines of its log that name a process. So
the processes of the attempts are noted while they run.

Sources: NVIDIA's Multi-Process Service documentation, "Error Containment"; the logs of drivers 535
and 580.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from collector.gpu_slices.mps_control import MPSControl
from core.clock import Clock, to_ns
from plugins.gpu_processes.owners import container_ids
from protocol.attempts import AttemptObservation, ObservedState

SECOND_NS = 1_000_000_000
# Clients notice a fault at their next call of CUDA.
AFTER_SECONDS = 600
# The clocks of the log and the engine are those of this host, but the log is written later.
BEFORE_SECONDS = 10
MAX_FAULTS = 20
# How attempts end when the GPU does not answer them.
_ENDS = frozenset({"exit_code", "signal"})

_READY = re.compile(r"NEW SERVER (\d+): Ready")
_EXITED = re.compile(r"Server (\d+) exited with status (-?\d+)")
_FATAL = re.compile(r"\b(?:fatal|fault|exception)\b", re.IGNORECASE)
# Of a server, in the control daemon's log; its exit follows.
_SHUTTING_DOWN = "Server encountered a fatal exception"
_PROCESS = re.compile(r"\b(?:PID:?|[Cc]lient(?: process)?) ?(\d+)")
# The daemon logs each question to it, too.
_QUESTION = re.compile(r"Accepting connection|NEW UI|UI closed|Cmd:|Unknown command")
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{3})")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fatal fault.

    Attributes:
        pids: the processes that the log names with it.
        attempts: those that shared the GPU.
    """

    at_ns: int
    pids: frozenset[int]
    attempts: frozenset[str]

    @property
    def cause(self) -> int:
        """The process that caused it; 0 if the log names none, or several."""
        return next(iter(self.pids)) if len(self.pids) == 1 else 0


@dataclass(slots=True)
class _GPU:
    """What is known of one GPU's servers."""

    ready_servers: set[int] = field(default_factory=set)
    attempt_of_pid: dict[int, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    is_faulted: bool = False
    restarted_at_ns: int = 0


class MPSFaults:
    """Explains attempts that ended because of a fault. For one thread."""

    def __init__(self, control: MPSControl, clock: Clock, proc: Path = Path("/proc")) -> None:
        self._control = control
        self._clock = clock
        self._proc = proc
        self._gpus: dict[str, _GPU] = {}

    def look(
        self, gpu_uuid: str, attempts: frozenset[str], attempt_of_container: Mapping[str, str]
    ) -> None:
        """Read what a GPU's servers have logged since the last call, and note their clients."""
        gpu = self._gpus.setdefault(gpu_uuid, _GPU())
        lines = [
            line for line in self._control.new_log_lines(gpu_uuid) if not _QUESTION.search(line)
        ]
        if not lines:
            return
        for line in lines:
            self._read(gpu, line, attempts)
        was_faulted = gpu.is_faulted
        pids, gpu.is_faulted = self._control.clients(gpu_uuid)
        for pid in pids:
            if attempt_id := self._attempt_of(pid, attempt_of_container):
                gpu.attempt_of_pid[pid] = attempt_id
        if gpu.is_faulted and not was_faulted:
            self._note(gpu, "", attempts)

    def note_restart(self, gpu_uuid: str) -> None:
        """Note that the daemon of a GPU had ended and runs again."""
        self._gpus.setdefault(gpu_uuid, _GPU()).restarted_at_ns = to_ns(self._clock())

    def forget(self, gpu_uuid: str) -> None:
        """Forget a GPU whose attempts have ended."""
        self._gpus.pop(gpu_uuid, None)

    def explained(self, seen: AttemptObservation, gpu_uuid: str) -> AttemptObservation:
        """Return an attempt's observation, with the fault that ended it, if one did."""
        gpu = self._gpus.get(gpu_uuid)
        if gpu is None:
            return seen
        fault = next((fault for fault in gpu.faults if _is_ended_by(seen, fault)), None)
        if fault is None:
            return self._with_restart(seen, gpu_uuid, gpu.restarted_at_ns)
        culprit = gpu.attempt_of_pid.get(fault.cause, "")
        others = len(fault.attempts) - 1
        if culprit == seen.attempt_id:
            own = f"Its process {fault.cause} caused a fatal fault on {gpu_uuid}"
            return _with_message(seen, f"{own}, which ended the other jobs there, too.")
        if not others:
            return _with_message(seen, f"A fatal fault on {gpu_uuid} ended it.")
        cause = "This job or the other one there"
        if culprit or others > 1:
            cause = "Another job" if culprit else f"This job or one of {others} others there"
        return msgspec.structs.replace(
            seen,
            reason="gpu_fault_of_neighbor",
            message=f"{cause} caused a fatal fault on {gpu_uuid}, which ends all jobs that share "
            f"the GPU by MPS{'' if culprit else '; MPS does not tell which of them it was'}. "
            "Submit it again. If others must not end it, ask for a MIG instance or a whole GPU.",
        )

    def _with_restart(
        self, seen: AttemptObservation, gpu_uuid: str, at_ns: int
    ) -> AttemptObservation:
        """Return an attempt's observation, with an end of the daemon that may have harmed it."""
        until_ns = seen.finished_at_ns or to_ns(self._clock())
        is_concerned = seen.state is ObservedState.RUNNING or seen.reason in _ENDS
        has_run = seen.started_at_ns is not None and seen.started_at_ns <= at_ns
        if not is_concerned or not has_run or until_ns - at_ns > AFTER_SECONDS * SECOND_NS:
            return seen
        text = f"The MPS control daemon of {gpu_uuid} ended and was started again"
        return _with_message(seen, f"{text}; programs that used the GPU before may fail.")

    def _read(self, gpu: _GPU, line: str, attempts: frozenset[str]) -> None:
        if ready := _READY.search(line):
            gpu.ready_servers.add(int(ready[1]))
        elif exited := _EXITED.search(line):
            # A server that was never ready could not start: no client did that.
            if exited[2] != "0" and int(exited[1]) in gpu.ready_servers:
                self._note(gpu, line, attempts)
            gpu.ready_servers.discard(int(exited[1]))
        elif _FATAL.search(line) and _SHUTTING_DOWN not in line:
            self._note(gpu, line, attempts)

    def _note(self, gpu: _GPU, line: str, attempts: frozenset[str]) -> None:
        at_ns = _logged_at_ns(line) or to_ns(self._clock())
        pids = frozenset(map(int, _PROCESS.findall(line)))
        last = gpu.faults[-1] if gpu.faults else None
        if last is not None and at_ns - last.at_ns < BEFORE_SECONDS * SECOND_NS:
            # Several lines tell of the same fault.
            gpu.faults[-1] = Fault(last.at_ns, last.pids | pids, last.attempts)
        else:
            gpu.faults = [*gpu.faults[-MAX_FAULTS:], Fault(at_ns, pids, attempts)]

    def _attempt_of(self, pid: int, attempt_of_container: Mapping[str, str]) -> str:
        try:
            cgroup = (self._proc / str(pid) / "cgroup").read_text("utf-8", "replace")
        except OSError:
            return ""
        containers = (attempt_of_container.get(name, "") for name in container_ids(cgroup))
        return next(filter(None, containers), "")


def _is_ended_by(seen: AttemptObservation, fault: Fault) -> bool:
    if seen.state is not ObservedState.FAILED or seen.reason not in _ENDS:
        return False
    started_at_ns, finished_at_ns = seen.started_at_ns or 0, seen.finished_at_ns or 0
    has_run = started_at_ns <= fault.at_ns and seen.attempt_id in fault.attempts
    since_ns = finished_at_ns - fault.at_ns
    return has_run and -BEFORE_SECONDS * SECOND_NS <= since_ns <= AFTER_SECONDS * SECOND_NS


def _with_message(seen: AttemptObservation, text: str) -> AttemptObservation:
    return msgspec.structs.replace(seen, message=f"{seen.message} {text}".strip())


def _logged_at_ns(line: str) -> int | None:
    """Return the time of a line, which is this host's local time."""
    if logged := _TIME.search(line):
        local = datetime.strptime(logged[1], "%Y-%m-%d %H:%M:%S").astimezone()
        return to_ns(local) + int(logged[2]) * 1_000_000
    return None
