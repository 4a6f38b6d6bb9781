"""`vedette wheelhouse build`: what is installed here becomes the packages of appliances."""

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest

from cli.locked_packages import locked_versions
from portal.installer.wheelhouse import INDEX_NAME, REQUIREMENTS_NAME, Wheelhouse
from tests.fixtures.in_process import Result, run_vedette
from tests.servers import require_root

ROOT = Path(__file__).parents[3]
NOBODY = 65534
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def build(*options: str) -> Result:
    return run_vedette("wheelhouse", "build", *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "wheelhouse"
    built = build("--offline", "--output", str(folder))
    assert built.returncode == 0, built.stderr
    return folder


def test_the_index_says_what_the_wheelhouse_is_for(folder: Path) -> None:
    contents = msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=Wheelhouse)
    requirements = (folder / REQUIREMENTS_NAME).read_bytes()

    assert contents.version == version("vedette")
    assert contents.pythons == [f"{sys.version_info.major}.{sys.version_info.minor}"]
    assert contents.machines == [os.uname().machine]
    assert contents.requirements_sha256 == sha256(requirements).hexdigest()


def test_every_wheel_has_its_hash_in_the_requirements(folder: Path) -> None:
    requirements = (folder / REQUIREMENTS_NAME).read_text(encoding="utf-8")

    wheels = list(folder.glob("*.whl"))

    assert len(wheels) == len(PIN.findall(requirements))
    for wheel in wheels:
        assert f"sha256:{sha256(wheel.read_bytes()).hexdigest()}" in requirements


def test_the_agent_gets_none_of_the_servers_packages(folder: Path) -> None:
    names = {name for name, _ in PIN.findall((folder / REQUIREMENTS_NAME).read_text())}

    assert {"vedette", "click", "msgspec"} <= names
    assert not {"flask", "sqlalchemy", "dash", "duckdb"} & {name.lower() for name in names}


def test_the_wheel_of_a_checkout_has_its_files(folder: Path) -> None:
    wheel = next(folder.glob("vedette-*.whl"))

    with ZipFile(wheel) as archive:
        assert archive.read("cli/main.py") == (ROOT / "cli" / "main.py").read_bytes()
        assert "collector/agent.py" in archive.namelist()
        assert not [name for name in archive.namelist() if name.endswith(".pyc")]


@pytest.mark.nightly
def test_the_same_packages_make_the_same_wheels_and_old_ones_are_removed(folder: Path) -> None:
    before = (folder / REQUIREMENTS_NAME).read_bytes()
    (folder / "vedette-0.0.1-py3-none-any.whl").touch()

    build("--offline", "--output", str(folder))

    assert (folder / REQUIREMENTS_NAME).read_bytes() == before
    assert not (folder / "vedette-0.0.1-py3-none-any.whl").exists()


def test_a_folder_that_is_copied_can_be_read_by_every_user(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """A data folder below folders that its owner may enter."""
    require_root("gives files to another user")
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.mark.needs_root
def test_the_portal_owns_what_root_built_in_its_data_folder_and_no_other_file(
    tmp_path: Path, folder_of_nobody: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"root's")
    built_folder = folder_of_nobody / "wheelhouse"
    built_folder.mkdir()
    (built_folder / "link").symlink_to(foreign)
    environ = {"VEDETTE_DATA_DIR": str(folder_of_nobody)}
    wheel = tmp_path / "vedette-9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    built = run_vedette("wheelhouse", "build", "--offline", "--wheel", str(wheel), environ=environ)
    assert built.returncode == 0, built.stderr
    (built_folder / "link").unlink()
    paths = [built_folder, *built_folder.iterdir()]
    assert {path.stat().st_uid for path in paths} == {NOBODY}
    assert not any(path.stat().st_mode & 0o077 for path in paths)
    assert foreign.stat().st_uid == 0
    assert (built_folder / wheel.name).read_bytes() == b"wheel"


def test_without_an_index_the_error_says_what_else_to_do(
    tmp_path: Path,
) -> None:
    environ = {"PIP_NO_INDEX": "1"}

    failed = run_vedette(
        "wheelhouse", "build", "--output", str(tmp_path / "wheelhouse"), environ=environ
    )

    assert failed.returncode == 1
    assert "--offline" in failed.stderr
    assert not (tmp_path / "wheelhouse").exists()


def test_the_locks_of_agent_and_server_have_the_versions_that_were_tested() -> None:
    agent = dict(PIN.findall((ROOT / "cli" / "agent-requirements.txt").read_text()))
    tested = dict(PIN.findall((ROOT / "requirements" / "dev.txt").read_text()))

    assert locked_versions().items() <= tested.items()
    assert agent.items() <= tested.items()
