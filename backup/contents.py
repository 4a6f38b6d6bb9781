"""What a backup holds: copies that fit together, in a folder that is then stored, and folders.

The order matters. The database is copied first: whatever it refers to is stored afterwards, so that
no log or sample of the database's time is missing. What comes later in the other parts is more
than the database lists, and the restored server deletes or ignores it.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from sqlalchemy import make_url

from backup.database_copy import copy_database, count_rows
from core.disk_space import MIN_FREE_BYTES, disk_space
from core.errors import UnavailableError
from core.quantities import format_size
from core.secretbox import KEY_FILE, SecretBox
from core.settings import ENVIRONMENT_PREFIX, UNPREFIXED, ServerSettings, secret_key
from core.settings_file import write_variables
from timeseries.store import Store
from timeseries.store_url import EMBEDDED_SCHEME, StoreURL, files_folder, parse_store_url

STAGE = "contents"
MANIFEST, SETTINGS, SECRET_KEY, SAMPLES = (
    "manifest.json",
    "settings.env",
    "secret_key",
    "samples.duckdb",
)
# Files that are not complete yet.
INCOMPLETE = ("*.new", "snapshot.duckdb", "snapshot.duckdb.wal")
_FORMAT = 1
_OTHER_STORES = {
    "influxdb": "influxd backup",
    "victoriametrics": "vmbackup",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup holds, as its file `manifest.json` says.

    Attributes:
        format: of this file.
        version: of Vedette.
        at: when the database was copied, in ISO 8601.
        database: `sqlite` or `mysql`.
        rows: the number of rows by table.
        samples: how many samples the embedded store has; None if it is no part of the backup.
        folders: where the folders `samples`, `logs`, `data` and `exports` were.
        left_out: what is no part of the backup, and how to back it up.
    """

    format: int = _FORMAT
    version: str
    at: str
    database: str
    rows: Mapping[str, int]
    samples: int | None = None
    folders: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    @property
    def data_at(self) -> datetime:
        """When the database was copied."""
        return datetime.fromisoformat(self.at)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Return the manifest in a folder.

        Raises:
            UnavailableError: there is none, or a newer version of Vedette has made it.
        """
        try:
            values: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnavailableError(f"This is no backup of Vedette: {error}.") from error
        if values["format"] != _FORMAT:
            raise UnavailableError(
                f"The backup was made by Vedette {values['version']}. Install that version."
            )
        return cls(**values)


@contextmanager
def gathered(
    settings: ServerSettings, store: Store, *, now: datetime
) -> Iterator[tuple[Manifest, list[Path]]]:
    """Give the manifest, and the folders to store during the block.

    Raises:
        UnavailableError: the database or the samples can't be copied.
    """
    stage = settings.data_dir.resolve() / "backup" / STAGE
    with ExitStack() as stack:
        shutil.rmtree(stage, ignore_errors=True)  # of a process that was killed
        stack.callback(shutil.rmtree, stage, ignore_errors=True)
        stage.mkdir(parents=True)
        _require_room(settings, stage)
        copy = copy_database(settings.resolved_database_url, stage)
        rows = count_rows(copy)
        _write_keys(settings, stage)
        samples = _copy_samples(settings, store, stage, stack)
        folders = _folders(settings)
        manifest = Manifest(
            version=version("vedette"),
            at=now.isoformat(),
            database="sqlite" if copy.suffix == ".db" else "mysql",
            rows=rows,
            samples=samples,
            folders={name: str(folder) for name, folder in folders.items()},
            left_out=left_out(settings),
        )
        text = json.dumps(asdict(manifest), indent=1)
        (stage / MANIFEST).write_text(text, encoding="utf-8")
        yield manifest, [stage, *(folder for folder in folders.values() if folder.exists())]


def left_out(settings: ServerSettings) -> list[str]:
    """Return what is no part of the backups of a server, and how to back it up."""
    store, logs = _store_url(settings), settings.resolved_log_url
    parts = []
    if store.scheme != EMBEDDED_SCHEME:
        name = store.scheme.removesuffix("s")
        parts.append(
            f"the samples in {store.redacted}: a server of its own, back it up with "
            f"{_OTHER_STORES.get(name, 'its own tools')}"
        )
    elif "://" in store.files:
        parts.append(
            f"the settled samples in {store.files}: turn on versions in the bucket, and retain "
            f"deleted ones for backup_retention_days ({settings.backup_retention_days})"
        )
    if "://" in logs:
        parts.append(f"the logs of ended jobs in {logs}: turn on versions in the bucket")
    if settings.data_folder is None:
        place = settings.resolved_data_url
        parts.append(f"the uploads and results in {place}: turn on versions in the bucket")
    if settings.registry_url:
        parts.append(f"the images in the registry {settings.registry_url}: back up its storage")
    return parts


def _require_room(settings: ServerSettings, stage: Path) -> None:
    """Leave the disk to the server, which writes meanwhile, if the copies would fill it."""
    files = [_store_url(settings).file]
    if is_sqlite(settings):
        files.append(Path(str(make_url(settings.resolved_database_url).database)))
    copied_bytes = sum(file.stat().st_size for file in files if file and file.exists())
    free_bytes = disk_space(stage).free_bytes
    if free_bytes < copied_bytes + MIN_FREE_BYTES:
        raise UnavailableError(
            f"The copies of database and samples need {format_size(copied_bytes)} in {stage}, and "
            f"the server {format_size(MIN_FREE_BYTES)}, but only {format_size(free_bytes)} are "
            "free. Free space on that disk."
        )


def _folders(settings: ServerSettings) -> dict[str, Path]:
    """Return the folders that are stored as they are, by their names in the manifest.

    Of a link, restic would store where it leads to instead of what is there.
    """
    store, logs = _store_url(settings), settings.resolved_log_url
    folders = {"exports": settings.exports_dir.resolve()}
    if store.file is not None and "://" not in store.files:
        folder = Path(store.files) if store.files else files_folder(store.file)
        folders["samples"] = folder.resolve()
    if "://" not in logs:
        folders["logs"] = Path(logs).resolve()
    if settings.data_folder is not None:
        folders["data"] = settings.data_folder.resolve()
    return folders


def _store_url(settings: ServerSettings) -> StoreURL:
    return parse_store_url(settings.resolved_timeseries_url)


def _copy_samples(
    settings: ServerSettings, store: Store, stage: Path, stack: ExitStack
) -> int | None:
    """Copy the file of an embedded store, whose other files stay until the stack is closed."""
    if _store_url(settings).file is None:
        return None
    # Servers with another store never load DuckDB.
    from timeseries.duckdb.snapshot import snapshot, stored_samples_of  # noqa: PLC0415
    from timeseries.duckdb.store import DuckDBStore  # noqa: PLC0415

    copy = stack.enter_context(snapshot(cast("DuckDBStore", store)))
    shutil.move(copy, stage / SAMPLES)
    return stored_samples_of(stage / SAMPLES)


def _write_keys(settings: ServerSettings, stage: Path) -> None:
    """Write the keys, wherever they come from, and the settings that differ from the defaults."""
    SecretBox.of(settings)  # a new server makes its key now
    keys = settings.encryption_keys.replace(",", " ").split()
    text = "\n".join(keys) + "\n" if keys else (settings.data_dir / KEY_FILE).read_text("utf-8")
    (stage / KEY_FILE).write_text(text, encoding="utf-8")
    (stage / SECRET_KEY).write_text(f"{secret_key(settings)}\n", encoding="utf-8")
    names = {setting: name for name, setting in UNPREFIXED.items()}
    default = ServerSettings()
    write_variables(
        stage / SETTINGS,
        {
            names.get(setting.name, f"{ENVIRONMENT_PREFIX}{setting.name.upper()}"): str(value)
            for setting in fields(settings)
            if (value := getattr(settings, setting.name)) != getattr(default, setting.name)
        },
    )


def is_sqlite(settings: ServerSettings) -> bool:
    """Return whether a server's database is a file."""
    return make_url(settings.resolved_database_url).get_backend_name() == "sqlite"
