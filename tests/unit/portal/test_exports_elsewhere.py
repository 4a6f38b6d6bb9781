"""The export of a removed tenant, made on one host, is found by the portals of all others."""

from dataclasses import replace
from pathlib import Path

import pytest

from core.db import SessionFactory
from core.settings import ServerSettings
from datasets.parts import PartStore
from tenants.models import RemovalState, TenantRemoval
from tests.cast import NOON
from tests.fixtures.shared_portal import Serve
from tests.unit.portal.conftest import Browser

CONTENT = b"PK" + bytes(3_000_000)


@pytest.fixture
def elsewhere(settings: ServerSettings, tmp_path: Path) -> ServerSettings:
    """The settings of another host with the same store of data."""
    return replace(settings, data_dir=tmp_path / "other", data_url=str(tmp_path / "shared"))


@pytest.fixture
def removal(sessions: SessionFactory, elsewhere: ServerSettings) -> TenantRemoval:
    """A removal whose export the scheduler of the other host has published."""
    with sessions.begin() as session:
        removal = TenantRemoval(
            tenant_id="gone",
            tenant_slug="gone",
            tenant_name="Gone",
            state=RemovalState.REMOVED,
            requested_by="olivia@platform.example",
            requested_at=NOON,
            exported_at=NOON,
        )
        session.add(removal)
    elsewhere.exports_dir.mkdir(parents=True)
    path = elsewhere.exports_dir / removal.file_name
    path.write_bytes(CONTENT)
    PartStore(elsewhere).put_export(path)
    assert not path.exists()
    return removal


@pytest.fixture
def here(elsewhere: ServerSettings, serve: Serve, olivia: Browser) -> Browser:
    """Olivia's browser at the portal of a host that has made no export."""
    serve(replace(elsewhere, data_dir=elsewhere.data_dir.with_name("here")))
    return olivia


@pytest.mark.parametrize("path", ["/console/removals", "/api/v1/platform/removals"])
def test_it_is_downloaded_and_discarded(
    here: Browser, removal: TenantRemoval, elsewhere: ServerSettings, path: str
) -> None:
    with here.get(f"{path}/{removal.id}/export") as answer:
        assert answer.data == CONTENT
        assert answer.mimetype == "application/zip"
        assert removal.file_name in answer.headers["Content-Disposition"]
    assert here.call("POST", f"{path}/{removal.id}/discard").status_code in {200, 302}
    assert here.get(f"{path}/{removal.id}/export").status_code == 404
    assert list((Path(elsewhere.data_url) / "exports").iterdir()) == []


def test_one_that_is_missing_is_not_found(
    here: Browser, removal: TenantRemoval, elsewhere: ServerSettings
) -> None:
    (Path(elsewhere.data_url) / "exports" / removal.file_name).unlink()
    assert here.get(f"/api/v1/platform/removals/{removal.id}/export").status_code == 404
    assert here.call("POST", f"/api/v1/platform/removals/{removal.id}/discard").status_code == 200
