"""What the API's description says holds for a viewer."""

import pytest
from flask import Flask
from sqlalchemy import update

from core.db import SessionFactory
from tenants.models import Membership, Role
from tenants.people.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.fuzzing import fuzz_all
from tests.unit.portal.world import make_world

pytestmark = pytest.mark.timeout(900)


def test_every_answer_is_as_described(
    app: Flask, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        world = make_world(session, cast, now=clock.now)
        session.execute(
            update(Membership).where(Membership.user_id == cast.bob.id).values(role=Role.VIEWER)
        )
        _, secret = create_api_token(session, scope_of(cast.bob), name="fuzz", now=clock.now)
    assert fuzz_all(app, {"Authorization": f"Bearer {secret}"}, world.ids) > 80
