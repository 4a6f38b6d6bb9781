"""Migrations create the schema of the models, and drop it, on SQLite and MariaDB."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import create_database_engine
from core.errors import ConfigurationError
from core.migrations import HERE, downgrade_database, schema_differences, upgrade_database
from core.revisions import current_revision, head_revision, revisions
from tenants.models import Verification, VerificationState
from tests.fixtures.rows import insert_row


def test_the_names_of_the_files_are_the_revisions_in_order() -> None:
    scripts = ScriptDirectory(str(HERE)).walk_revisions()

    assert [script.revision for script in scripts][::-1] == revisions()


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url)
    yield engine
    engine.dispose()


def test_the_migrated_schema_matches_the_models_and_migrating_again_changes_nothing(
    database: Engine,
) -> None:
    upgrade_database(database)
    upgrade_database(database)

    assert current_revision(database) == head_revision()
    assert schema_differences(database) == []


@pytest.mark.nightly
def test_migrating_down_and_up_again_works(database: Engine) -> None:
    upgrade_database(database)

    downgrade_database(database, "base")
    assert inspect(database).get_table_names() == ["alembic_version"]

    upgrade_database(database)
    assert current_revision(database) == head_revision()


def test_an_empty_database_has_no_revision(tmp_path: Path) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'empty.db'}")

    assert current_revision(engine) is None
    engine.dispose()


@pytest.mark.parametrize("command", [current_revision, upgrade_database])
def test_an_unknown_revision_is_reported_with_the_next_step(
    command: Callable[[Engine], object], tmp_path: Path
) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'old.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0003')")

    with pytest.raises(ConfigurationError, match=r"'0003'.*DATABASE_URL"):
        command(engine)
    engine.dispose()


@pytest.mark.nightly
def test_jobs_of_the_first_schema_keep_their_attempts_and_their_order(database: Engine) -> None:
    upgrade_database(database)
    downgrade_database(database, "0001_initial")
    rows: dict[str, dict[str, object]] = {
        "tenants": {"id": "t", "slug": "acme", "name": "Acme"},
        "appliances": {"id": "a", "tenant_id": "t", "name": "dgx-01", "state": "online"},
        "jobs": {"id": "j", "tenant_id": "t", "name": "train", "state": "queued"},
        "attempts": {"id": "x", "job_id": "j", "tenant_id": "t", "appliance_id": "a"},
    }
    with database.begin() as connection:
        for table, values in rows.items():
            insert_row(connection, table, values)
    upgrade_database(database)
    with database.connect() as connection:
        row = connection.execute(
            text("SELECT submitted_at, queue_at, mounts, priority FROM jobs")
        ).one()
        assert row[0] == row[1]
        assert (str(row[2]), row[3]) == ("[]", 0)
        assert connection.scalar(text("SELECT count(*) FROM attempts")) == 1


@pytest.mark.nightly
def test_nodes_of_clusters_go_with_the_columns_that_make_them_nodes(database: Engine) -> None:
    upgrade_database(database)
    with database.begin() as connection:
        insert_row(connection, "tenants", {"id": "nodes", "slug": "nodes", "name": "Acme"})
        for ident, connector in (("login", None), ("n1", "login")):
            values = {"id": ident, "tenant_id": "nodes", "name": ident, "state": "online"}
            own = {"connector_id": connector, "secret_hash": ident}
            insert_row(connection, "appliances", {**values, **own})
            event = {"id": f"e-{ident}", "tenant_id": "nodes", "appliance_id": ident}
            insert_row(connection, "appliance_events", event)
    downgrade_database(database, "0031_part_connections")
    with database.connect() as connection:
        for table, ident in (("appliances", "login"), ("appliance_events", "e-login")):
            rows = text(f"SELECT id FROM {table} WHERE tenant_id = 'nodes'")  # noqa: S608 - our tables
            assert connection.scalars(rows).all() == [ident]
    upgrade_database(database)
    assert schema_differences(database) == []


@pytest.mark.nightly
def test_appliances_on_offer_have_a_week_to_pass_their_verification(database: Engine) -> None:
    upgrade_database(database)
    downgrade_database(database, "0039_market")
    rows: dict[str, dict[str, object]] = {
        "tenants": {"id": "verified-t", "slug": "verified", "name": "Acme"},
        "appliances": {
            "id": "verified-a",
            "tenant_id": "verified-t",
            "name": "dgx-01",
            "state": "online",
            "secret_hash": "verified",
        },
        "offered_appliances": {
            "appliance_id": "verified-a",
            "provider_id": "verified-t",
            "offer_id": "o",
        },
    }
    with database.begin() as connection:
        for table, values in rows.items():
            insert_row(connection, table, values)
    upgrade_database(database)
    with Session(database) as session:
        row = session.scalars(select(Verification)).one()
        assert (row.appliance_id, row.state) == ("verified-a", VerificationState.UNVERIFIED)
        assert row.grace_until is not None
        assert row.grace_until - row.since == timedelta(days=7)


def test_receivers_of_one_tenant_or_of_the_platform_have_different_names(database: Engine) -> None:
    upgrade_database(database)
    owners = ("t1", "t2", None)
    with database.begin() as connection:
        for owner in owners:
            if owner:
                insert_row(connection, "tenants", {"id": owner, "slug": owner, "name": owner})
            values = {"id": f"one-{owner}", "tenant_id": owner, "name": "Pager"}
            insert_row(connection, "receivers", values)
    for owner in owners:
        values = {"id": f"two-{owner}", "tenant_id": owner, "name": "Pager"}
        with pytest.raises(IntegrityError), database.begin() as connection:
            insert_row(connection, "receivers", values)
