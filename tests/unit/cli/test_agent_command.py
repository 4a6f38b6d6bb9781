"""`vedette agent`: the token may come through standard input, and a configuration is checked."""

import subprocess
import sys
from pathlib import Path

from collector.identity import load_identity
from tests.fixtures.recording_portal import ENROL_TOKEN, RecordingPortal


def vedette_agent(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "agent", *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_token_is_read_from_standard_input(tmp_path: Path) -> None:
    with RecordingPortal() as portal:
        result = vedette_agent(
            "enroll", portal.url, "-", "--data-dir", str(tmp_path), stdin=f"{ENROL_TOKEN}\n"
        )
        [request] = portal.recording.enrolments

    assert result.returncode == 0, result.stderr
    assert request.token == ENROL_TOKEN
    assert load_identity(tmp_path) is not None


def test_an_empty_standard_input_is_no_token(tmp_path: Path) -> None:
    result = vedette_agent("enroll", "http://127.0.0.1:9", "-", "--data-dir", str(tmp_path))

    assert result.returncode == 1
    assert "Standard input holds no token" in result.stderr


def test_a_configuration_in_order_is_said_to_be(tmp_path: Path) -> None:
    config_path = tmp_path / "agent.toml"
    config_path.write_text('portal_urls = ["https://portal.example.com"]\n', encoding="utf-8")

    result = vedette_agent("check", "--data-dir", str(tmp_path))

    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{config_path} is in order.\n"


def test_checking_a_configuration_names_all_its_faults(tmp_path: Path) -> None:
    config_path = tmp_path / "other.toml"
    config_path.write_text("intervall_seconds = 5\n", encoding="utf-8")

    result = vedette_agent("check", str(config_path))

    assert result.returncode == 1
    assert "portal_urls is missing" in result.stderr
    assert "did you mean interval_seconds?" in result.stderr
