"""`vedette agent check`: one line a check, and what to do where something is not in order."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from collector.checks.appliance import check_appliance
from collector.checks.connections import CheckResult, Verdict
from collector.config import AgentConfig
from collector.data_dir import Identity, save_identity
from collector.remote_write.settings import RemoteWriteSettings
from core.clock import utc_now
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal
from tests.fixtures.remote_write import series_in
from tests.servers import free_port
from tests.unit.collector.test_remote_write import Receiver


@pytest.fixture
def portal() -> Iterator[RecordingPortal]:
    with RecordingPortal() as portal:
        yield portal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    identity = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN)
    save_identity(tmp_path, identity)
    return tmp_path


def findings(
    home: Path, *urls: str, now: datetime | None = None, **settings: object
) -> dict[str, CheckResult]:
    """Return what is found, by what was looked at."""
    fields: dict[str, object] = {"executor": "none", "buffer_max_bytes": 2**20, **settings}
    config = AgentConfig(portal_urls=list(urls), data_dir=home, **fields)  # type: ignore[arg-type] # as named
    results = check_appliance(config, clock=utc_now if now is None else lambda: now)
    return {finding.name: finding for finding in results}


def write_config(home: Path, url: str, *lines: str) -> Path:
    path = home / "agent.toml"
    first = [f'portal_urls = ["{url}"]', f'data_dir = "{home}"', 'executor = "none"']
    path.write_text("\n".join([*first, *lines]), encoding="utf-8")
    return path


def vedette_check(*arguments: str) -> Result:
    return run_vedette("agent", "check", *arguments)


def test_a_healthy_appliance_passes_all_checks(home: Path, portal: RecordingPortal) -> None:
    results = findings(home, portal.url)
    assert {finding.verdict for finding in results.values()} == {Verdict.OK}
    assert set(results) == {
        "data folder",
        "disk space",
        "identity",
        f"portal {portal.url}",
        f"clock against {portal.url}",
        f"identity at {portal.url}",
    }
    assert " ms" in results[f"portal {portal.url}"].message


def test_a_portal_that_does_not_listen_fails(home: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    finding = findings(home, url)[f"portal {url}"]
    assert finding.verdict is Verdict.FAIL
    assert "Connection refused" in finding.message
    assert "curl -i" in finding.advice


def test_each_address_is_checked(home: Path, portal: RecordingPortal) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    results = findings(home, gone, portal.url)
    assert results[f"portal {gone}"].verdict is Verdict.FAIL
    assert results[f"portal {portal.url}"].verdict is Verdict.OK


def test_a_name_that_does_not_resolve_fails(home: Path) -> None:
    finding = findings(home, "http://portal.invalid")["portal http://portal.invalid"]
    assert finding.verdict is Verdict.FAIL
    assert "can't resolve" in finding.message


def test_a_port_that_does_not_speak_tls_fails_without_a_traceback(
    home: Path, portal: RecordingPortal
) -> None:
    url = portal.url.replace("http:", "https:")
    assert findings(home, url)[f"portal {url}"].verdict is Verdict.FAIL


def test_an_identity_that_the_portal_does_not_take_fails(
    home: Path, portal: RecordingPortal
) -> None:
    revoked = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token="revoked")
    save_identity(home, revoked)
    finding = findings(home, portal.url)[f"identity at {portal.url}"]
    assert finding.verdict is Verdict.FAIL
    assert "unknown agent" in finding.message
    assert "vedette agent enroll --again" in finding.advice


def test_an_appliance_that_is_not_enrolled_fails_with_the_command(
    tmp_path: Path, portal: RecordingPortal
) -> None:
    results = findings(tmp_path, portal.url)
    assert results["identity"].verdict is Verdict.FAIL
    assert "vedette agent enroll" in results["identity"].advice
    assert f"identity at {portal.url}" not in results


def test_a_secret_that_others_can_read_fails(home: Path, portal: RecordingPortal) -> None:
    (home / "identity.json").chmod(0o644)
    finding = findings(home, portal.url)["identity"]
    assert finding.verdict is Verdict.FAIL
    assert "chmod 600" in finding.advice


@pytest.mark.parametrize(("seconds", "side"), [(60, "ahead"), (-60, "behind")])
def test_a_clock_that_is_off_is_a_warning(
    home: Path, portal: RecordingPortal, seconds: int, side: str
) -> None:
    now = datetime.now(UTC) + timedelta(seconds=seconds)
    finding = findings(home, portal.url, now=now)[f"clock against {portal.url}"]
    assert finding.verdict is Verdict.WARNING
    assert f"s {side}" in finding.message


def test_a_buffer_larger_than_the_disk_is_a_warning(home: Path, portal: RecordingPortal) -> None:
    finding = findings(home, portal.url, buffer_max_bytes=2**60)["disk space"]
    assert finding.verdict is Verdict.WARNING
    assert "1024 PiB" in finding.message


@pytest.mark.parametrize(
    ("executor", "verdict"), [("docker", Verdict.FAIL), ("auto", Verdict.WARNING)]
)
def test_a_missing_docker_engine_fails_only_if_configured(
    home: Path, portal: RecordingPortal, executor: str, verdict: Verdict
) -> None:
    results = findings(home, portal.url, executor=executor, docker_url=f"unix://{home}/docker.sock")
    assert results["Docker"].verdict is verdict


def test_a_socket_that_answers_is_in_order(home: Path, portal: RecordingPortal) -> None:
    path = home / "docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        results = findings(home, portal.url, executor="docker", docker_url=f"unix://{path}")
    assert results["Docker"].verdict is Verdict.OK


def test_the_command_prints_a_line_for_each_check(home: Path, portal: RecordingPortal) -> None:
    write_config(home, portal.url, "buffer_max_bytes = 1048576")
    result = vedette_check("--data-dir", str(home))
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line[:2] for line in result.stdout.splitlines()] == ["ok"] * 7


def test_the_command_fails_when_a_check_does(home: Path) -> None:
    write_config(home, f"http://127.0.0.1:{free_port()}")
    result = vedette_check("--data-dir", str(home))
    assert result.returncode == 1
    assert "FAIL" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_all_configuration_errors_are_lines_of_the_check(home: Path) -> None:
    write_config(home, "portal.example.com", "intervall_seconds = 5")
    result = vedette_check("--data-dir", str(home))
    assert result.returncode == 1
    assert "must start with http://" in result.stdout
    assert "did you mean interval_seconds?" in result.stdout


def test_offline_only_the_file_is_checked(home: Path) -> None:
    path = write_config(home, "http://portal.invalid")
    result = vedette_check("--offline", str(path))
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{path} is valid.\n"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "verdict", "advice"),
    [
        (204, Verdict.OK, ""),
        (400, Verdict.WARNING, "no samples"),
        (401, Verdict.FAIL, "credentials"),
        (404, Verdict.FAIL, "--web.enable-remote-write-receiver"),
        (500, Verdict.FAIL, "Check the server"),
    ],
)
def test_remote_write_is_checked_with_a_request(  # noqa: PLR0917 - fixtures
    home: Path,
    portal: RecordingPortal,
    receiver: Receiver,
    status: int,
    verdict: Verdict,
    advice: str,
) -> None:
    receiver.answers.append((status, {}))
    settings = RemoteWriteSettings(url=receiver.url)
    finding = findings(home, portal.url, remote_write=settings)[f"remote_write to {receiver.url}"]
    assert finding.verdict is verdict
    assert advice in finding.advice
    (body,) = receiver.bodies
    assert not series_in(body)


def test_a_token_file_of_remote_write_that_cannot_be_read_fails(
    home: Path, portal: RecordingPortal, receiver: Receiver
) -> None:
    settings = RemoteWriteSettings(url=receiver.url, bearer_token_file=home / "missing")
    finding = findings(home, portal.url, remote_write=settings)[f"remote_write to {receiver.url}"]
    assert finding.verdict is Verdict.FAIL
    assert "No such file" in finding.message


def test_remote_write_to_a_port_without_tls_fails_without_a_traceback(
    home: Path, portal: RecordingPortal, receiver: Receiver
) -> None:
    url = receiver.url.replace("http:", "https:")
    finding = findings(home, portal.url, remote_write=RemoteWriteSettings(url=url))[
        f"remote_write to {url}"
    ]
    assert finding.verdict is Verdict.FAIL
    assert "does not answer" in finding.message
