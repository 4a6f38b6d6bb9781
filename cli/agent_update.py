"""`vedette agent update`: the service that installs what the portal orders.

It runs as root, and the order comes from the agent, which is not trusted with more than to start an
update: the portal's address and CA are those of the installation, and the install script checks all
packages. Another list of packages than the ordered one is refused.
"""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import click
import msgspec
import urllib3

from cli.agent_enroll import data_dir_option
from cli.agent_service import UPDATES_NAME, user_option
from cli.systemd import this_program
from collector.updates import ORDER_NAME, RESULT_NAME
from core.atomic_files import replacing
from core.errors import InvalidInputError, UnavailableError, VedetteError
from protocol.agent_update import MAX_MESSAGE_LENGTH, UpdateOrder, UpdateReport, UpdateResult

CA_NAME = "ca.pem"
_MAX_ORDER_BYTES = 4096
_DOWNLOAD_SECONDS = 30.0
_FAILURE = "✗ "


@click.command()
@data_dir_option
@user_option
@click.option("--portal-url", required=True, help="Where the install script comes from.")
def update(data_dir: Path, *, user: str, portal_url: str) -> None:
    """Install the version that the portal has ordered. vedette-agent-update.service runs this."""
    folder = this_program().parents[2]
    order = _take_order(data_dir / ORDER_NAME)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            script = Path(temporary) / "install"
            script.write_bytes(_script(portal_url, folder / UPDATES_NAME / CA_NAME, order))
            options = ["--prefix", str(folder), "--data-dir", str(data_dir), "--user", user]
            _run(script, options)
    except (VedetteError, OSError) as error:
        message = error.message if isinstance(error, VedetteError) else str(error)
        _report(folder, order, UpdateResult.FAILED, message)
        raise
    _report(folder, order, UpdateResult.SUCCEEDED)


def _take_order(path: Path) -> UpdateOrder:
    """Remove the order and return it. The agent's user may have put anything in its place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MAX_ORDER_BYTES) if is_regular else b""
        return msgspec.json.decode(content, type=UpdateOrder)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInputError(f"{path} is not an order of the portal: {error}.") from error
    finally:
        # What stays there would start this service again and again, until systemd gives up.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)  # follows no links
        else:
            path.unlink(missing_ok=True)


def _script(portal_url: str, ca_path: Path, order: UpdateOrder) -> bytes:
    """Return the portal's install script, if it installs what was ordered."""
    url = f"{portal_url}/install"
    ca_certs = str(ca_path) if ca_path.exists() else None
    timeout = urllib3.Timeout(_DOWNLOAD_SECONDS)
    try:
        with urllib3.PoolManager(ca_certs=ca_certs, timeout=timeout) as http:
            response = http.request("GET", url)
    except urllib3.exceptions.HTTPError as error:
        raise UnavailableError(f"{url} can't be downloaded: {error}.") from error
    if response.status != 200:  # noqa: PLR2004
        raise UnavailableError(f"{url} answered {response.status}.")
    if f"\nrequirements_sha256={order.requirements_sha256}\n".encode() not in response.data:
        raise UnavailableError(
            f"{url} no longer installs the packages of this rollout. Start another rollout."
        )
    return response.data


def _run(script: Path, options: list[str]) -> None:
    command = ["/bin/sh", str(script), *options]
    ended = subprocess.run(  # noqa: S603 - the portal's script, over TLS
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    click.echo(ended.stdout)
    if ended.returncode:
        raise UnavailableError(_failure(ended.stdout) or f"It ended with {ended.returncode}.")


def _failure(output: str) -> str:
    """Return cause and remedy from the script's output, else its end, in one line."""
    _, marker, reason = output.rpartition(f"\n{_FAILURE}")
    reason = reason.partition("\n  Then run")[0] if marker else output
    return " ".join(reason.split())[-MAX_MESSAGE_LENGTH:]


def _report(folder: Path, order: UpdateOrder, result: UpdateResult, message: str = "") -> None:
    report = UpdateReport(
        update_id=order.update_id, result=result, message=message[:MAX_MESSAGE_LENGTH]
    )
    with replacing(folder / UPDATES_NAME / RESULT_NAME) as file:
        os.fchmod(file.fileno(), 0o644)  # the agent's user reads it
        file.write(msgspec.json.encode(report))
