"""`/`, `/health` and the API reference."""

from flask import Blueprint, jsonify, redirect, render_template
from flask.typing import ResponseReturnValue
from sqlalchemy import text

from dash_app.custom.views import default_address
from portal.context import current_scope, database

pages = Blueprint("home", __name__)


@pages.get("/")
def index() -> ResponseReturnValue:
    """Redirect to the user's default view, or to the fleet dashboard."""
    with database() as session:
        return redirect(default_address(session, current_scope()) or "/dashboards/")


@pages.get("/health")
def health() -> ResponseReturnValue:
    """Return 200 if the database is reachable, for load balancers."""
    with database() as session:
        session.execute(text("SELECT 1"))
    return jsonify(name="vedette", status="pass")


@pages.get("/api/v1/docs")
def api_reference() -> ResponseReturnValue:
    """Show the API reference."""
    return render_template("reference.html")
