"""The launcher's files for the members of MPI's and Ray's gangs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from collector.data_dir import LAUNCHERS_NAME, secure_data_dir
from collector.jobs.launcher import member
from collector.jobs.launcher.preparation import GangLauncher
from collector.jobs.preparations import PreparationError
from protocol.attempts import AttemptSpec
from protocol.gangs import Framework, Gang, GangMember, GangNetwork

MEMBERS = [
    GangMember(
        rank=rank, name=f"train-{rank}", address=f"10.96.0.{rank + 1}", appliance_id=f"dgx-{rank}"
    )
    for rank in range(2)
]
NETWORK = GangNetwork(vni=1, subnet="10.96.0.0/16", wireguard_port=51820)
GANG = Gang(gang_id="g", rank=0, members=MEMBERS, framework=Framework.MPI, network=NETWORK)
SPEC = AttemptSpec(
    attempt_id="a-0",
    job_id="j",
    name="train",
    image="acme/mpi:1",
    command=["mpirun", "train"],
    gpu_uuids=["GPU-1", "GPU-2"],
    gang=GANG,
)


def test_the_first_member_leads_with_its_command_and_the_others_serve(tmp_path: Path) -> None:
    launcher = GangLauncher(tmp_path)
    first = launcher.prepare(SPEC)
    start = ["/bin/sh", "/run/vedette/start"]
    assert first.command == [*start, "lead", "mpirun", "train"]
    other = structs.replace(SPEC, attempt_id="a-1", gang=structs.replace(GANG, rank=1))
    assert launcher.prepare(other).command == [*start, "serve"]
    assert launcher.prepare(SPEC) == first, "also at the next step, or by the next agent"


def test_containers_of_any_user_still_read_the_files_after_a_restart(tmp_path: Path) -> None:
    [mount] = GangLauncher(tmp_path).prepare(SPEC).mounts
    folder = Path(mount.source)
    before = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    secure_data_dir(tmp_path)
    assert {path: path.stat().st_mode for path in before} == before
    assert (tmp_path / LAUNCHERS_NAME).stat().st_mode & 0o077 == 0


def test_the_files_are_mounted_read_only_and_open_to_any_user(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        [mount] = GangLauncher(tmp_path).prepare(SPEC).mounts
    finally:
        os.umask(before)
    folder = Path(mount.source)
    assert (mount.target, mount.is_read_only) == ("/run/vedette", True)
    assert folder.stat().st_mode & 0o005 == 0o005
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {
        "hostfile": 0o644,
        "hydra-hosts": 0o644,
        "launch": 0o755,
        "member.py": 0o755,
        "start": 0o755,
    }
    assert (folder / "hostfile").read_text() == "train-0 slots=2\ntrain-1 slots=2\n"
    assert (folder / "hydra-hosts").read_text() == "train-0:2\ntrain-1:2\n"


def test_other_gangs_run_their_command_as_it_is(tmp_path: Path) -> None:
    launcher = GangLauncher(tmp_path)
    torch = structs.replace(SPEC, gang=structs.replace(GANG, framework=Framework.TORCH))
    single = structs.replace(SPEC, gang=None)
    assert launcher.prepare(torch) == torch
    assert launcher.prepare(single) == single
    assert not (tmp_path / LAUNCHERS_NAME).exists()


def test_files_of_attempts_that_are_gone_are_removed(tmp_path: Path) -> None:
    launcher = GangLauncher(tmp_path)
    launcher.keep_only(())
    launcher.prepare(SPEC)
    launcher.keep_only({"a-0"})
    assert [folder.name for folder in (tmp_path / LAUNCHERS_NAME).iterdir()] == ["a-0"]
    launcher.keep_only(())
    assert not list((tmp_path / LAUNCHERS_NAME).iterdir())


def test_a_disk_that_takes_no_files_fails_the_attempt_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / LAUNCHERS_NAME).write_text("a file in its place")
    with pytest.raises(PreparationError) as failed:
        GangLauncher(tmp_path).prepare(SPEC)
    assert failed.value.reason == "start_failed"
    assert str(tmp_path / LAUNCHERS_NAME) in str(failed.value)


def test_a_gang_without_a_command_of_an_older_portal_fails(tmp_path: Path) -> None:
    with pytest.raises(PreparationError) as failed:
        GangLauncher(tmp_path).prepare(structs.replace(SPEC, command=[]))
    assert failed.value.reason == "invalid_job"


def test_the_program_of_members_runs_by_python_3_8() -> None:
    source = Path(member.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert "vedette" not in imported
    assert not imported & {"collector", "core", "protocol", "msgspec"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train-1", "orted", "-x"], ["train-1", "orted", "-x"]),
        (["-x", "train-1", "orted"], ["train-1", "orted"]),
        (["-n", "-l", "root", "train-1", "orted"], ["train-1", "orted"]),
    ],
)
def test_options_of_ssh_before_the_host_are_left_out(words: list[str], expected: list[str]) -> None:
    assert member.without_options(words) == expected


@pytest.mark.parametrize("words", [[], ["train-1"], ["-x", "train-1"]])
def test_the_launcher_refuses_to_run_without_a_host_or_a_command(words: list[str]) -> None:
    with pytest.raises(member.LauncherError):
        member.without_options(words)


SIGNALED_EARLY = """
import os, signal, threading
from collector.jobs.launcher import member

class Processes(member.Processes):
    def start(self, command, **options):
        process = super().start(command, **options)
        process.stdout.readline()
        os.kill(os.getpid(), signal.SIGTERM)
        return process

processes = Processes()
start = processes.start
processes.start = lambda command: start(command, stdout=-1)
waiting = "trap 'exit 7' TERM; echo started; while :; do sleep 0.1; done"
raise SystemExit(member.run_command(["sh", "-c", waiting], processes, threading.Event()))
"""


def test_a_signal_that_arrives_while_the_command_starts_reaches_it() -> None:
    assert subprocess.run([sys.executable, "-c", SIGNALED_EARLY], check=False).returncode == 7
