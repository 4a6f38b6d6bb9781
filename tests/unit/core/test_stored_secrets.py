"""Secrets that a server makes for itself and keeps, however many processes begin at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from core.secret_file import load_or_create_secret
from core.secretbox import KEY_FILE, SecretBox
from core.settings import ServerSettings, secret_key

PROCESSES = 6
WAIT_SECONDS = 120
# Each says that it is ready and waits for the word, so that all look for the file at once.
RACER = """
import sys
from pathlib import Path
from core.secretbox import SecretBox
from core.settings import ServerSettings, secret_key

settings = ServerSettings(data_dir=Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
box = SecretBox.of(settings)
print(box.encrypt("a signing key"), secret_key(settings), flush=True)
"""


def racers(data_dir: Path) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]


def test_processes_that_start_simultaneously_have_the_same_keys(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path / "data")
    begun = racers(settings.data_dir)
    for process in begun:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in begun:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=WAIT_SECONDS)[0].split() for process in begun]

    assert {process.returncode for process in begun} == {0}
    assert {key for _, key in answers} == {secret_key(settings)}
    box = SecretBox.of(settings)
    assert [box.decrypt(stored) for stored, _ in answers] == ["a signing key"] * PROCESSES


def test_a_stored_secret_is_the_same_next_time_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret"
    assert load_or_create_secret(path, lambda: "first") == "first\n"
    assert load_or_create_secret(path, lambda: "second") == "first\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_but_the_stored_secret_stays_in_the_folder(tmp_path: Path) -> None:
    SecretBox.of(ServerSettings(data_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_what_another_process_stored_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    def make() -> str:
        path.write_text("theirs\n", encoding="utf-8")
        return "ours"

    assert load_or_create_secret(path, make) == "theirs\n"


def test_a_secret_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> str:
        raise ValueError("no randomness")

    with pytest.raises(ValueError, match="randomness"):
        load_or_create_secret(tmp_path / "secret", fail)
    assert list(tmp_path.iterdir()) == []
