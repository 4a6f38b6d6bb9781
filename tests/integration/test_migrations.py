"""The migrations lead to what the models say, and back, on both databases that we support."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from core.db import create_database_engine
from core.migrations import (
    current_revision,
    downgrade_database,
    head_revision,
    schema_differences,
    upgrade_database,
)

PEOPLE_OF_0002 = (
    """INSERT INTO tenants (id, slug, name, state, created_at)
    VALUES ('t', 'acme', 'Acme', 'active', '2026-03-02 12:00:00')""",
    """INSERT INTO users
    (id, tenant_id, email, name, role, password_hash, is_active, created_at) VALUES
    ('a', 't', 'alice@acme.example', 'Alice', 'admin', 'x', 1, '2026-03-02 12:00:00'),
    ('o', NULL, 'olivia@vedette.example', 'Olivia', 'operator', 'x', 1, '2026-03-02 12:00:00')""",
    """INSERT INTO login_sessions (id, user_id, secret_hash, created_at, expires_at)
    VALUES ('s', 'a', 'h', '2026-03-02 12:00:00', '2026-03-02 12:00:00')""",
    """INSERT INTO api_tokens (id, user_id, name, secret_hash, created_at)
    VALUES ('k', 'a', 'ci', 'h', '2026-03-02 12:00:00')""",
)


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url)
    yield engine
    engine.dispose()


def test_the_migrated_schema_is_what_the_models_say(database: Engine) -> None:
    upgrade_database(database)

    assert current_revision(database) == head_revision()
    assert schema_differences(database) == []


def test_migrating_down_and_up_again_works(database: Engine) -> None:
    upgrade_database(database)

    downgrade_database(database, "base")
    assert inspect(database).get_table_names() == ["alembic_version"]

    upgrade_database(database)
    assert current_revision(database) == head_revision()


def test_migrating_twice_changes_nothing(database: Engine) -> None:
    upgrade_database(database)
    upgrade_database(database)

    assert current_revision(database) == head_revision()


def test_an_older_folder_of_scripts_is_not_the_newest(tmp_path: Path) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'empty.db'}")

    assert current_revision(engine) is None
    engine.dispose()


def test_people_and_what_is_theirs_survive_the_way_to_memberships_and_back(
    database: Engine,
) -> None:
    downgrade_database(database, "base")
    upgrade_database(database, "0002")
    with database.begin() as connection:
        for statement in PEOPLE_OF_0002:
            connection.exec_driver_sql(statement)

    upgrade_database(database)
    with database.begin() as connection:
        ask = connection.exec_driver_sql
        assert ask("SELECT user_id, tenant_id, role FROM memberships").all() == [
            ("a", "t", "admin")
        ]
        assert ask("SELECT id FROM users WHERE is_operator").scalars().all() == ["o"]
        assert ask("SELECT tenant_id FROM api_tokens").scalars().all() == ["t"]
        assert ask("SELECT user_id FROM login_sessions").scalars().all() == ["a"]

    downgrade_database(database, "0002")
    with database.begin() as connection:
        people = connection.exec_driver_sql("SELECT id, tenant_id, role FROM users ORDER BY id")
        assert people.all() == [("a", "t", "admin"), ("o", None, "operator")]
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM login_sessions").scalar() == 1
