"""`/health`: whether the portal can do its work, for load balancers and supervisors."""

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue
from sqlalchemy import text

from portal.context import database

pages = Blueprint("health", __name__)


@pages.get("/health")
def health() -> ResponseReturnValue:
    """Answer 200 while the database answers."""
    with database() as session:
        session.execute(text("SELECT 1"))
    return jsonify(status="ok")
