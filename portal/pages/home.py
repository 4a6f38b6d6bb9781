"""`/`: the fleet dashboard is the first thing that people see."""

from flask import Blueprint, redirect
from flask.typing import ResponseReturnValue

pages = Blueprint("home", __name__)


@pages.get("/")
def index() -> ResponseReturnValue:
    """Go to the fleet dashboard."""
    return redirect("/dashboards/")
