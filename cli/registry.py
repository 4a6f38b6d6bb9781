"""`vedette registry`: configure and run the private registry (Debian package docker-registry)."""

import logging
import shutil
import signal
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from cli.database import prepare_data_dir
from cli.supervision import stop_event, stop_with_parent
from core.clock import utc_now
from core.errors import ConfigurationError
from core.logs import configure_logging
from core.settings import ServerSettings, load_server_settings
from jobqueue.images.tokens import ISSUER, SERVICE, RegistryTokens

log = logging.getLogger(__name__)

PROGRAM = "docker-registry"
COLLECT_EVERY = timedelta(days=1)
# How long a repository may have no tag: an image that is being pushed has its tag last.
EMPTY_FOR = timedelta(days=1)
STOP_SECONDS = 15
POLL_SECONDS = 0.5
# Where the registry keeps what belongs to a repository; its layers are elsewhere.
REPOSITORIES = Path("docker/registry/v2/repositories")
CONFIG_NAME, CERTIFICATE_NAME = "config.yml", "tokens.crt"


@click.group()
def registry() -> None:
    """Run the private registry for container images."""


@registry.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Defaults to DATA_DIR/registry.")
@click.option("--listen", help="Address and port. Defaults to those of registry_url.")
def config(folder: Path | None, listen: str | None) -> None:
    """Write the configuration of a registry that accepts the portal's tokens, and print its path.

    It has secrets: only this user may read it. Write it again when secret_key changes.
    """
    settings = load_server_settings()
    click.echo(write_config(settings, folder or settings.data_dir / "registry", listen=listen))


@registry.command()
def serve() -> None:
    """Run the registry of registry_url; collect garbage at the start and once a day.

    Deleted images free their space then; the registry is down for as long.
    """
    settings = load_server_settings()
    configure_logging(settings.log_level, process="registry")
    stop_with_parent()
    program = shutil.which(PROGRAM)
    if program is None:
        fault = f"{PROGRAM} is not installed. Install the Debian package {PROGRAM}"
        raise ConfigurationError([fault], source="The registry")
    path = write_config(settings, settings.data_dir / "registry", listen=None)
    stop = stop_event()
    while not stop.is_set():
        collect_garbage(program, path, now=utc_now())
        child = subprocess.Popen([program, "serve", str(path)])  # noqa: S603 - its own command
        restart_at = time.monotonic() + COLLECT_EVERY.total_seconds()
        while (
            not stop.wait(POLL_SECONDS) and child.poll() is None and time.monotonic() < restart_at
        ):
            pass
        if child.poll() is not None and not stop.is_set():
            raise ConfigurationError(
                [f"{PROGRAM} ended with status {child.returncode}"], source="The registry"
            )
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def collect_garbage(program: str, config_path: Path, *, now: datetime) -> None:
    """Free the space of deleted images; the registry must not run meanwhile."""
    remove_empty(config_path, before=now - EMPTY_FOR)
    argv = [program, "garbage-collect", str(config_path)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    if result.returncode:
        log.warning("garbage collection of images failed: %s", result.stderr[-500:].strip())


def remove_empty(config_path: Path, *, before: datetime) -> None:
    """Remove the repositories that had no tag since a time, with what they had before.

    The registry has no request for that: it lists them forever, and their untagged manifests would
    keep the layers of deleted images.
    """
    values = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    root = Path(values["storage"]["filesystem"]["rootdirectory"], REPOSITORIES)
    for tags in sorted(root.rglob("_manifests/tags"), reverse=True):
        repository = tags.parent.parent
        folders = (repository, *(path for part in repository.glob("_*") for path in part.rglob("")))
        changed_at = max(folder.stat().st_mtime for folder in folders)
        if changed_at < before.timestamp() and not any(tags.iterdir()):
            for part in repository.glob("_*"):
                shutil.rmtree(part)
            for folder in (repository, *repository.parents):
                if folder == root or any(folder.iterdir()):
                    break
                folder.rmdir()


def write_config(settings: ServerSettings, folder: Path, *, listen: str | None) -> Path:
    """Write the configuration and the certificate of the tokens; return the configuration's path.

    Raises:
        ConfigurationError: there is no registry_url, or the folder can't be written.
    """
    url = urlsplit(settings.registry_url)
    if not url.netloc:
        fault = "registry_url is not set. Set it to the address of the registry"
        raise ConfigurationError([fault], source="The configuration")
    prepare_data_dir(folder)
    tokens = RegistryTokens(settings)
    certificate = folder.resolve() / CERTIFICATE_NAME
    certificate.write_text(tokens.certificate_pem, encoding="ascii")
    path = folder.resolve() / CONFIG_NAME
    values = registry_config(
        settings,
        tokens,
        folder=folder.resolve(),
        certificate=certificate,
        listen=listen or url.netloc,
    )
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def registry_config(
    settings: ServerSettings,
    tokens: RegistryTokens,
    *,
    folder: Path,
    certificate: Path,
    listen: str,
) -> dict[str, Any]:
    """Return the configuration of the registry."""
    portal_url = settings.resolved_public_url
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "data")},
            "delete": {"enabled": True},
        },
        "http": {"addr": listen, "secret": tokens.http_secret},
        "auth": {
            "token": {
                "realm": f"{portal_url}/api/registry/token",
                "service": SERVICE,
                "issuer": ISSUER,
                "rootcertbundle": str(certificate),
            }
        },
        "notifications": {
            "endpoints": [
                {
                    "name": "vedette",
                    "url": f"{portal_url}/api/registry/notifications",
                    "headers": {"Authorization": [f"Bearer {tokens.notification_secret}"]},
                    "timeout": "30s",
                    "ignore": {
                        "mediatypes": ["application/octet-stream"],
                        "actions": ["pull", "mount"],
                    },
                    "threshold": 3,
                    "backoff": "5s",
                }
            ]
        },
    }
