"""`/api/v1/docs`: the API reference, drawn in the browser from the OpenAPI description."""

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

pages = Blueprint("reference", __name__)


@pages.get("/api/v1/docs")
def docs() -> ResponseReturnValue:
    """Show the API reference."""
    return render_template("reference.html")
