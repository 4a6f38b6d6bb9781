"""The file of trusted CAs follows rotations that were made on another host."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from cli import ca
from cli.ca import AUTHORITIES_NAME, authorities_written, write_authorities
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.secretbox import SecretBox
from core.settings import ServerSettings
from tenants.pki.authority import rotate_authority


def rotate(session: Session, settings: ServerSettings) -> str:
    made = rotate_authority(
        session, SecretBox.of(settings), overlap=timedelta(hours=1), now=utc_now()
    )
    return made.certificate


def test_a_rotation_elsewhere_is_in_the_file_soon(
    sessions: SessionFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca, "AUTHORITIES_SECONDS", 0.01)
    settings = ServerSettings(data_dir=tmp_path, tls_certificate_file=tmp_path / "server.pem")
    file = tmp_path / AUTHORITIES_NAME
    with transaction(sessions) as session:
        write_authorities(session, settings)
        number = file.stat().st_ino
        write_authorities(session, settings)
        assert file.stat().st_ino == number  # connections don't load it again
    with authorities_written(sessions, settings):
        with transaction(sessions) as session:
            newest = rotate(session, settings)
        deadline = time.monotonic() + 30
        while newest not in file.read_text("ascii") and time.monotonic() < deadline:
            time.sleep(0.01)
    assert newest in file.read_text("ascii")


def test_a_server_without_tls_of_its_own_writes_no_file(
    sessions: SessionFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca, "AUTHORITIES_SECONDS", 0.01)
    with authorities_written(sessions, ServerSettings(data_dir=tmp_path)):
        time.sleep(0.05)
    assert not (tmp_path / AUTHORITIES_NAME).exists()
