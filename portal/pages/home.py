"""`/`, `/health` and the API reference."""

from flask import Blueprint, jsonify, redirect, render_template
from flask.typing import ResponseReturnValue
from sqlalchemy import text

from portal.context import database

pages = Blueprint("home", __name__)


@pages.get("/")
def index() -> ResponseReturnValue:
    """Redirect to the fleet dashboard."""
    return redirect("/dashboards/")


@pages.get("/health")
def health() -> ResponseReturnValue:
    """Return 200 if the database is reachable, for load balancers."""
    with database() as session:
        session.execute(text("SELECT 1"))
    return jsonify(status="ok")


@pages.get("/api/v1/docs")
def api_reference() -> ResponseReturnValue:
    """Show the API reference."""
    return render_template("reference.html")
