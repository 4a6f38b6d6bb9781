"""What is no part of a backup is named, with the way to back it up."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from backup.contents import gathered, left_out
from core.errors import UnavailableError
from core.settings import ServerSettings
from tests.cast import NOON
from timeseries.duckdb.store import DuckDBStore


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ServerSettings(), []),
        (
            ServerSettings(timeseries_url="influxdb://vedette:pass-word@db:8086/fleet"),
            ["influxd backup"],
        ),
        (ServerSettings(timeseries_url="victoriametricss://metrics:8428"), ["vmbackup"]),
        (
            ServerSettings(timeseries_url="duckdb:////srv/s.duckdb?files=s3://samples/vedette"),
            ["s3://samples/vedette"],
        ),
        (
            ServerSettings(log_url="s3://logs/vedette", registry_url="https://registry.example"),
            ["s3://logs/vedette", "registry.example"],
        ),
    ],
)
def test_what_other_servers_have_is_left_out(settings: ServerSettings, words: list[str]) -> None:
    parts = left_out(settings)
    assert len(parts) == len(words)
    for part, word in zip(parts, words, strict=True):
        assert word in part
        assert "pass-word" not in part


def test_files_of_samples_on_another_disk_are_not_left_out(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path}/samples.duckdb?files={tmp_path}/elsewhere"
    assert left_out(ServerSettings(timeseries_url=url)) == []


def test_nothing_is_copied_where_it_would_fill_the_disk_of_the_server(tmp_path: Path) -> None:
    with (tmp_path / "vedette.db").open("wb") as sparse:
        sparse.truncate(shutil.disk_usage(tmp_path).free + 1)
    settings = ServerSettings(data_dir=tmp_path)
    with (
        closing(DuckDBStore(tmp_path / "samples.duckdb")) as store,
        pytest.raises(UnavailableError, match="Free space on that disk"),
        gathered(settings, store, now=NOON),
    ):
        pass
    assert not (tmp_path / "backup" / "contents").exists()
