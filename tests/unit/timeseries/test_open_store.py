import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import duckdb
import psutil
import pytest

from core.clock import NS_PER_SECOND
from core.errors import ConfigurationError
from tests.fixtures.polling import eventually
from timeseries.declared import DECLARED
from timeseries.duckdb.hot.database import Database
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import detail_of, open_store
from timeseries.points import Point
from timeseries.store import Detail, StoreUnavailableError, write

LINE = "use one of duckdb:///relative/path, duckdb:////absolute/path"


def test_three_slashes_are_a_path_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    open_store("duckdb:///var/samples.duckdb").close()

    assert (tmp_path / "var" / "samples.duckdb").is_file()


def test_a_store_that_is_closed_interrupts_what_reads_it(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    cursor = store.database.cursor()

    def read() -> str:
        with pytest.raises(duckdb.InterruptException):
            cursor.execute(
                "SELECT sum(a.range * b.range) FROM range(1e7::int) a, range(1e5::int) b"
            )
        return "interrupted"

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        eventually(lambda: is_busy(cursor))
        store.close()
        assert reading.result() == "interrupted"
    DuckDBStore(tmp_path / "samples.duckdb").close()


def is_busy(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Return whether a statement runs: DuckDB refuses all else then."""
    try:
        cursor.fetchone()
    except duckdb.ResourceInUseException:
        return True
    except duckdb.Error:
        pass
    return False


@pytest.mark.parametrize("end", ["close", "reopen"])
def test_a_cursor_is_refused_while_a_database_waits_for_its_readers(
    tmp_path: Path, end: str
) -> None:
    database = Database(tmp_path / "samples.duckdb")
    cursor, begun, may_end = database.cursor(), Event(), Event()

    def hold(number: int) -> int:
        begun.set()
        may_end.wait(30)
        return number

    def read() -> None:
        with pytest.raises(duckdb.InterruptException):
            cursor.execute("SELECT hold(1)")

    def open_cursors() -> None:
        while True:
            database.cursor().close()

    cursor.create_function("hold", hold, ["BIGINT"], "BIGINT")
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(read)
        begun.wait()
        ending = pool.submit(getattr(database, end))
        with pytest.raises(StoreUnavailableError):
            open_cursors()
        assert not ending.done()
        may_end.set()
        reading.result()
        ending.result()
    database.close()


def test_four_slashes_are_a_path_from_the_root(tmp_path: Path) -> None:
    open_store(f"duckdb:///{tmp_path}/samples.duckdb").close()

    assert (tmp_path / "samples.duckdb").is_file()


@pytest.mark.parametrize("url", ["duckdb://", "duckdb:///", "duckdb:///:memory:"])
def test_no_path_is_a_store_in_memory(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    open_store(url).close()

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scheme_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=f"starts with sqlite://; {LINE}"):
        open_store("sqlite:///x.db")


def test_a_password_in_a_rejected_url_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store("nosuchdb://user:hunter2@host/db")

    assert "hunter2" not in str(caught.value)


def test_a_url_without_a_scheme_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="has no scheme"):
        open_store("samples.duckdb")


def test_two_slashes_and_a_path_differ_from_three() -> None:
    with pytest.raises(ConfigurationError, match=r"write duckdb:///var/x\.duckdb"):
        open_store("duckdb://var/x.duckdb")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database at all\n" * 1000)

    with pytest.raises(StoreUnavailableError, match=r"notes\.txt can't be opened: .*not a valid"):
        open_store(f"duckdb:///{path}")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailableError, match=r"create the folder"):
        open_store(f"duckdb:///{tmp_path}/file/x.duckdb")


def test_a_file_that_must_exist_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"

    with pytest.raises(StoreUnavailableError, match=f"The time series file {path}.*in --from"):
        open_store(f"duckdb:///{path}", must_exist=True, source="--from")

    assert not path.exists()


@pytest.mark.parametrize(
    ("memory_mib", "threads"), [(100, 3), (0, 0)], ids=["as set", "by default"]
)
def test_duckdb_uses_its_share_of_memory_and_cores(
    tmp_path: Path, memory_mib: int, threads: int
) -> None:
    share_mib = min(max(psutil.virtual_memory().total // 2**20 // 4, 512), 4096)
    cores = min(max((psutil.cpu_count() or 1) - 1, 2), 8)

    url = f"duckdb:///{tmp_path / 'samples.duckdb'}"
    store = open_store(url, memory_mib=memory_mib, threads=threads)
    assert isinstance(store, DuckDBStore)
    text = "SELECT current_setting('memory_limit'), current_setting('threads')"
    ((limit, used),) = store.fetch(text, [])
    store.close()

    size, unit = limit.split()
    mebibytes = float(size) * {"MiB": 1, "GiB": 1024}[unit]
    assert mebibytes == pytest.approx(memory_mib or share_mib, rel=0.02)
    assert used == (threads or cores)


def test_only_the_backend_of_the_url_is_imported() -> None:
    script = (
        "import sys; import timeseries.open_store; "
        "print([name for name in ('duckdb', 'pyarrow', 'influxdb_client') if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert result.stdout.strip() == b"[]"


def test_declared_metrics_have_roll_ups_and_those_of_charts_in_more_detail() -> None:
    store = open_store("duckdb://")
    assert isinstance(store, DuckDBStore)
    fields = {"power_watts": 300.0, "fan_percent": 40.0, "invented": 1.0}
    points = [Point("gpu", {"gpu": "0"}, fields, time * NS_PER_SECOND) for time in range(600)]
    write(store, points, identity={"tenant": "acme", "appliance": "dgx-1"})

    store.maintain(now_ns=3 * 24 * 3600 * NS_PER_SECOND)

    (segment,) = store.manifest.of("gpu")
    assert segment.table.fields.keys() == fields.keys()
    assert segment.rolled == {"power_watts": Detail.PERCENTILES, "fan_percent": Detail.HOURS}
    store.close()


def test_the_documentation_lists_the_fields_that_have_more_roll_ups() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operating.md").read_text("utf-8")
    documented = {
        tuple(name.split(".")): Detail.PERCENTILES if "percentiles" in row else Detail.MEANS
        for row in re.findall(r"^\|.*\| count, sum \|.*$", text, re.MULTILINE)
        for name in re.findall(r"`(\w+\.\w+)`", row)
    }
    details = {
        (measurement, name): detail_of(measurement, name)
        for measurement, declared in DECLARED.items()
        for name in declared.fields
    }
    assert documented == {
        name: detail for name, detail in details.items() if detail is not Detail.HOURS
    }
