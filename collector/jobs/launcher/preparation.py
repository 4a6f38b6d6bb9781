"""Mounts the launcher in the containers of MPI's and Ray's members, and runs their part by it.

The first member runs the job's command once the others are there. These run what the first one
sends, which for MPI is its daemons and for Ray the nodes of a cluster: no member needs ssh.
"""

import shutil
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from msgspec import structs

from collector.data_dir import LAUNCHERS_NAME
from collector.jobs.preparations import Preparation, PreparationError
from jobqueue.executors.spool_files import safe_path
from protocol.attempts import AttemptSpec
from protocol.gangs import LAUNCHER_DIR, LED_BY_FIRST, Gang
from protocol.job_spec import Mount

_PROGRAMS = ("start", "launch", "member.py")
_START = ("/bin/sh", f"{LAUNCHER_DIR}/start")


class GangLauncher(Preparation):
    """Prepares members whose gang the first one leads.

    Args:
        data_dir: the agent's; each attempt gets a folder in it.
    """

    def __init__(self, data_dir: Path) -> None:
        self._dir = data_dir / LAUNCHERS_NAME

    def prepare(self, spec: AttemptSpec) -> AttemptSpec:
        """Return the attempt with the launcher's files and as its part of the gang.

        Raises:
            PreparationError: the files can't be written.
        """
        gang = spec.gang
        if gang is None or gang.framework not in LED_BY_FIRST:
            return spec
        if not spec.command:
            message = f"A gang of {gang.framework} needs a command. Add one to the job."
            raise PreparationError("invalid_job", message)
        folder = safe_path(self._dir, spec.attempt_id, "")
        try:
            _write(folder, gang, processes=len(spec.gpu_uuids) or 1)
        except OSError as error:
            message = f"Can't write the gang's launcher to {folder}: {error.strerror}."
            raise PreparationError("start_failed", message) from error
        part = ("serve",) if gang.rank else ("lead", *spec.command)
        mount = Mount(source=str(folder), target=LAUNCHER_DIR)
        return structs.replace(spec, command=[*_START, *part], mounts=[*spec.mounts, mount])

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Remove the folders of other attempts."""
        for folder in self._dir.iterdir() if self._dir.is_dir() else ():
            if folder.name not in attempt_ids:
                shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, gang: Gang, *, processes: int) -> None:
    """Write the files again at each start: a newer agent may have others.

    Containers with any user read them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    contents = {name: (files(__package__) / name).read_text() for name in _PROGRAMS}
    contents["hostfile"] = "".join(f"{host} slots={processes}\n" for host in gang.hosts)
    contents["hydra-hosts"] = "".join(f"{host}:{processes}\n" for host in gang.hosts)
    for name, text in contents.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755 if name in _PROGRAMS else 0o644)
