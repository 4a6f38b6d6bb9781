"""Nobody but its user can open what `vedette up --demo` writes, whatever the umask is."""

import pytest

from tests.deployment import IS_MANY
from tests.e2e.conftest import Demo
from tests.fixtures.file_modes import open_to_others
from tests.fixtures.polling import eventually

pytestmark = pytest.mark.nightly

EXPECTED = {
    "up.lock", "agent.log", "fleet.log",
    "agent.toml", "identity.json", "agent.lock", "buffer", "enrollment.json",
}  # fmt: skip
# Where one process has all data.
EMBEDDED = {
    "vedette.db", "vedette.db-wal", "vedette.db-shm", "samples.duckdb", "samples.duckdb.wal",
    "secret_key", "encryption_keys", "server.log",
}  # fmt: skip


def test_every_file_of_server_agent_and_fleet_is_private(demo: Demo) -> None:
    """The demo starts without a umask, in a folder that everybody could write to."""
    expected = EXPECTED | (set() if IS_MANY else EMBEDDED)
    eventually(
        lambda: {path.name for path in demo.data_dir.rglob("*")} >= expected,
        within_seconds=120,
        what=f"all of {expected}",
    )
    assert open_to_others(demo.data_dir) == {}


def test_the_log_says_that_an_open_folder_was_closed(demo: Demo) -> None:
    log = (demo.data_dir / "up.log").read_text(errors="replace")

    assert f"{demo.data_dir}: removed the permissions of other users on 3 paths" in log
