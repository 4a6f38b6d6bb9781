"""The command lines of jobs on Slurm: plain scripts, pyxis and OCI bundles."""

import shlex
import subprocess
from pathlib import Path

import pytest

from jobqueue.executors.base import InvalidError
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.script import (
    bundle_of,
    command_of,
    gres_of,
    problem_of,
    pyxis_image,
    script_of,
)
from protocol.attempts import AttemptSpec
from protocol.job_spec import Mount

NONE = SlurmSettings()
PYXIS = SlurmSettings(containers="pyxis")
OCI = SlurmSettings(containers="oci", image_dir=Path("/images"))
COMMAND = ["python", "train.py", "--name", "a 'b' $HOME\n;é"]


def spec_of(**changes: object) -> AttemptSpec:
    fields: dict[str, object] = {"attempt_id": "a", "job_id": "j", "name": "n", "image": ""}
    return AttemptSpec(**{**fields, "command": COMMAND, **changes})  # type: ignore[arg-type] # names


def test_a_job_without_an_image_is_its_command() -> None:
    assert command_of(spec_of(), NONE) == COMMAND


def test_pyxis_gets_image_mounts_and_working_directory() -> None:
    mounts = [
        Mount(source="/data/a", target="/in", is_read_only=True),
        Mount(source="/data/b", target="/out", is_read_only=False),
    ]
    spec = spec_of(image="nvcr.io/nvidia/pytorch:24.01", cpus=1.5, mounts=mounts, working_dir="/w")
    assert command_of(spec, PYXIS) == [
        "srun",
        "--ntasks=1",
        "--cpus-per-task=2",
        "--container-image=nvcr.io#nvidia/pytorch:24.01",
        "--no-container-mount-home",
        "--container-mounts=/data/a:/in:ro,/data/b:/out:rw",
        "--container-workdir=/w",
        *COMMAND,
    ]


def test_an_oci_bundle_is_named_by_its_image() -> None:
    assert command_of(spec_of(image="python:3.13", cpus=4), OCI) == [
        "srun",
        "--ntasks=1",
        "--cpus-per-task=4",
        "--container=/images/python:3.13",
        *COMMAND,
    ]


@pytest.mark.parametrize(
    ("image", "written"),
    [
        ("python:3.13", "python:3.13"),
        ("acme/train:1", "acme/train:1"),
        ("nvcr.io/nvidia/pytorch:24.01", "nvcr.io#nvidia/pytorch:24.01"),
        ("localhost/train", "localhost#train"),
        ("registry:5000/train:1", "registry:5000#train:1"),
        ("/shared/train.sqsh", "/shared/train.sqsh"),
        ("./train.v1/a.sqsh", "./train.v1/a.sqsh"),
    ],
)
def test_images_are_written_as_enroot_reads_them(image: str, written: str) -> None:
    assert pyxis_image(image) == written


@pytest.mark.parametrize("image", ["../etc", "a/../../etc", "/etc"])
def test_a_bundle_is_in_its_folder(image: str) -> None:
    with pytest.raises(InvalidError, match="no name of an image"):
        bundle_of(image, OCI)


@pytest.mark.parametrize("source", ["/a:b", "/a,b"])
def test_pyxis_takes_no_mounts_with_its_own_signs(source: str) -> None:
    mounts = [Mount(source=source, target="/in", is_read_only=True)]
    assert "pyxis takes no paths" in problem_of(spec_of(image="a", mounts=mounts), PYXIS)


def test_mounts_of_a_bundle_are_its_own() -> None:
    mounts = [Mount(source="/a", target="/a", is_read_only=True)]
    assert "config.json" in problem_of(spec_of(image="a", mounts=mounts), OCI)


@pytest.mark.parametrize(
    ("gpus", "extra", "gres"),
    [
        (0, "", ""),
        (2, "", "gpu:2"),
        (2, "gpu:a100", "gpu:a100:2"),
        (2, "gpu:a100:2", "gpu:a100:2"),
        (0, "shard:2", "shard:2"),
        (1, "gpu:h100, shard:2", "gpu:h100:1,shard:2"),
    ],
)
def test_gpus_are_asked_for_by_number(gpus: int, extra: str, gres: str) -> None:
    assert gres_of(gpus, extra) == gres


@pytest.mark.parametrize(("gpus", "extra"), [(0, "gpu:1"), (1, "gpu:2"), (1, "gpu")])
def test_a_second_number_of_gpus_is_refused(gpus: int, extra: str) -> None:
    with pytest.raises(InvalidError, match="set the job's gpus"):
        gres_of(gpus, extra)


def test_a_shell_gives_the_command_its_own_words(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = ["sh", "-c", f'printf "%s|" "$@" > {shlex.quote(str(seen))}', "sh", *COMMAND]
    (tmp_path / "env.1").write_text("")
    script = script_of(spec_of(command=command), NONE, tmp_path, number=1)
    subprocess.run(["/bin/sh", "-c", script], check=True, env={"PATH": "/usr/bin:/bin"})
    assert seen.read_text() == "".join(f"{word}|" for word in COMMAND)
    assert (tmp_path / "exit.1").read_text() == "0\n"


@pytest.mark.parametrize(
    ("gpus", "option", "models", "gres"),
    [
        (2, "", [], "gpu:2"),
        (2, "", ["h100", "a100"], "gpu:h100:2"),
        (2, "shard:1", ["h100"], "gpu:h100:2,shard:1"),
        (2, "gpu:a100", [], "gpu:a100:2"),
        (2, "gpu:A100:2", ["h100", "a100"], "gpu:A100:2"),
        (2, "gpu:2", ["h100"], "gpu:h100:2"),
        (0, "shard:1", [], "shard:1"),
    ],
)
def test_the_type_is_the_one_of_the_option_or_the_first_model(
    gpus: int, option: str, models: list[str], gres: str
) -> None:
    assert gres_of(gpus, option, models) == gres


def test_an_option_that_contradicts_the_models_of_the_job_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"has gpu:a100, and the GPUs .* here: h100, h200"):
        gres_of(2, "gpu:a100", ["h100", "h200"])
