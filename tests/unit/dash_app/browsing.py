"""The dashboards in an app of their own, and who calls their callbacks as Dash's script does."""

import json
import re
from html import unescape

from flask import Flask, request
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from core.db import SessionFactory
from dash_app.app import create_dashboards
from tenants.scope import Scope
from tests.cast import Cast, FrozenClock, scope_of
from timeseries.store import Latest, LatestQuery, RangeQuery, Series, Store

USER_HEADER = "X-Test-User"
ROW, CELL = re.compile("<tr>(<td.*?)</tr>"), re.compile("<td[^>]*>(.*?)</td>")
TAG = re.compile("<[^>]*>")


class Browser:
    """Calls callbacks by the id of one of their outputs, as Dash's script does."""

    def __init__(self, client: FlaskClient, who: str) -> None:
        self.client = client
        self.headers = {USER_HEADER: who}

    def fill(self, output: str, changed: str = "", **values: object) -> str:
        """Return the JSON response of the callback that writes `output`, as text."""
        response = self.post(output, changed, **values)
        assert response.status_code == 200, response.text
        return json.dumps(response.get_json())

    def post(self, output: str, changed: str = "", **values: object) -> TestResponse:
        """Call the callback that writes `output`."""
        callbacks = self.client.get(
            "/dashboards/_dash-dependencies", headers=self.headers
        ).get_json()
        entry = next(item for item in callbacks if output in item["output"])
        body = {
            "output": entry["output"],
            # Of components of any number, such as charts of a job's metrics, the page has none.
            "outputs": [
                []
                if part.startswith("{")
                else dict(zip(("id", "property"), part.rsplit(".", 1), strict=True))
                for part in entry["output"].strip(".").split("...")
            ],
            "inputs": [self._with_value(item, values) for item in entry["inputs"]],
            "state": [self._with_value(item, values) for item in entry["state"]],
            "changedPropIds": [changed] if changed else [],
        }
        return self.client.post(
            "/dashboards/_dash-update-component", json=body, headers=self.headers
        )

    @staticmethod
    def _with_value(item: dict[str, str], values: dict[str, object]) -> dict[str, object]:
        name = f"{item['id']}_{item['property']}".replace("-", "_")
        return {**item, "value": values.get(name)}


class CountingStore:
    """Counts the queries of another store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.asked += 1
        return self._store.query_range(query)

    def latest(self, query: LatestQuery) -> list[Latest]:
        self.asked += 1
        return self._store.latest(query)


def served(sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock) -> FlaskClient:
    users = {"alice": cast.alice, "charlie": cast.charlie, "olivia": cast.olivia}
    server = Flask("test")

    def scope_provider() -> Scope:
        return scope_of(users[request.headers[USER_HEADER]])

    create_dashboards(
        server,
        sessions=sessions,
        store=store,
        scope_provider=scope_provider,
        zone_provider=lambda: "UTC",
        render_shell=lambda title, parts: f"<h1>{title}</h1>" + "".join(parts.values()),
        clock=clock,
    )
    return server.test_client()


def rows_of(area: dict[str, str]) -> list[list[str]]:
    """Return the text of each cell of a table's body."""
    return [
        [" ".join(unescape(TAG.sub(" ", cell)).split()) for cell in CELL.findall(row)]
        for row in ROW.findall(area["children"])
    ]
