"""`vedette agent update`: the order, the script that it runs, and the result that it leaves."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from collector.updates import ORDER_NAME, RESULT_NAME
from core.ids import new_id
from protocol.agent_update import UpdateOrder, UpdateReport, UpdateResult
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.serving import Serving

SHA256 = "a" * 64
ORDER = UpdateOrder(update_id=new_id(), version="1.1.0", requirements_sha256=SHA256)
SCRIPT = f"#!/bin/sh\nrequirements_sha256={SHA256}\n"
ROLLBACK = """
echo '→ Install'
cat >&2 <<END
✗ Version 1.1.0 sent no samples.
  See journalctl.
  Then run the same command again.
END
exit 1
"""


@pytest.fixture
def served() -> list[str]:
    """The script that the portal serves; empty for a 404."""
    return [""]


@pytest.fixture
def update(tmp_path: Path, served: list[str]) -> Iterator[Callable[[], Result]]:
    """Run the command on a host whose software and data are below `tmp_path`."""
    (tmp_path / "software" / "updates").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    program = tmp_path / "software" / "venv" / "bin" / "vedette"

    async def script(_request: Request) -> Response:
        return PlainTextResponse(served[0], status_code=200 if served[0] else 404)

    app = Starlette(routes=[Route("/install", script)])
    with Serving(app) as url, mock.patch("cli.agent_update.this_program", return_value=program):
        options = ["--data-dir", str(tmp_path / "data"), "--user", "gpu", "--portal-url", url]
        yield lambda: run_vedette("agent", "update", *options)


@pytest.fixture
def order_path(tmp_path: Path) -> Path:
    path = tmp_path / "data" / ORDER_NAME
    path.parent.mkdir(exist_ok=True)
    return path


def report(tmp_path: Path) -> UpdateReport:
    path = tmp_path / "software" / "updates" / RESULT_NAME
    assert path.stat().st_mode & 0o777 == 0o644
    return msgspec.json.decode(path.read_bytes(), type=UpdateReport)


def test_an_order_runs_the_portals_script_with_the_hosts_options(
    tmp_path: Path, served: list[str], update: Callable[[], Result], order_path: Path
) -> None:
    served[0] = f'{SCRIPT}echo "options: $*"\n'
    order_path.write_bytes(msgspec.json.encode(ORDER))
    ended = update()

    assert ended.returncode == 0, ended.stderr
    assert f"--prefix {tmp_path}/software --data-dir {tmp_path}/data --user gpu" in ended.stdout
    assert report(tmp_path) == UpdateReport(
        update_id=ORDER.update_id, result=UpdateResult.SUCCEEDED
    )
    assert not order_path.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SCRIPT + ROLLBACK, "Version 1.1.0 sent no samples. See journalctl."),
        (f"{SCRIPT}exit 3\n", "It ended with 3."),
        (f"requirements_sha256={'b' * 64}\n", "no longer installs the packages of this rollout"),
        ("", "/install answered 404."),
    ],
)
def test_a_failure_is_reported_with_its_reason(
    tmp_path: Path,
    served: list[str],
    update: Callable[[], Result],
    order_path: Path,
    *,
    text: str,
    message: str,
) -> None:
    served[0] = text
    order_path.write_bytes(msgspec.json.encode(ORDER))
    ended = update()

    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    reported = report(tmp_path)
    assert reported.result is UpdateResult.FAILED
    assert message in reported.message
    assert not order_path.exists()


@pytest.mark.parametrize("trap", ["link", "pipe", "text", "folder"])
def test_what_is_no_order_is_removed_and_never_followed(
    tmp_path: Path, served: list[str], update: Callable[[], Result], order_path: Path, trap: str
) -> None:
    served[0] = SCRIPT
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(msgspec.json.encode(ORDER))
    if trap == "link":
        order_path.symlink_to(elsewhere)
    elif trap == "pipe":
        os.mkfifo(order_path)
    elif trap == "folder":
        order_path.mkdir()
        (order_path / "link").symlink_to(tmp_path)
    else:
        order_path.write_text('{"update_id": "../../x"}')
    ended = update()

    assert ended.returncode == 1
    assert "is not an order of the portal" in ended.stderr
    assert elsewhere.exists()
    assert not (tmp_path / "software" / "updates" / RESULT_NAME).exists()
    assert not order_path.exists()
