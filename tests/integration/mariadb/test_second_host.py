"""A second host with the same database starts when it has the keys and folders of the first."""

import shutil
from pathlib import Path

import pytest

from tests.deployment import Deployment, make_deployment, serving
from tests.fixtures.mariadb import MariaDB
from tests.servers import free_port


@pytest.mark.nightly
@pytest.mark.needs_mariadb
# It starts three servers, and two that refuse to.
@pytest.mark.timeout(400)
def test_a_second_host_is_told_step_by_step_what_it_must_share(
    mariadb: MariaDB, tmp_path: Path
) -> None:
    url = mariadb.new_database()
    first = make_deployment(tmp_path / "first", database_url=url)
    second = Deployment(data_dir=tmp_path / "second", port=free_port(), database_url=url)
    with serving(first):
        refused = second.process("server")
        assert refused.returncode == 1
        assert "encryption_keys does not exist" in refused.stderr
        shutil.copy(first.data_dir / "encryption_keys", second.data_dir)
        refused = second.process("server")
        assert refused.returncode == 1
        for name in ("secret_key", "log_url", "data_url"):
            assert f"{name}: " in refused.stderr
        assert first.url in refused.stderr
        shutil.copy(first.data_dir / "secret_key", second.data_dir)
        shared = {
            "VEDETTE_LOG_URL": str(first.data_dir / "job-logs"),
            "VEDETTE_DATA_URL": str(first.data_dir / "data"),
        }
        with serving(second, environ=shared):
            pass
    # Nobody else runs: the host decides.
    with serving(second, environ={"VEDETTE_LOG_URL": str(tmp_path / "elsewhere")}):
        pass
