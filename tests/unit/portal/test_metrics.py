"""Names of measurements, fields and tags are visible to their tenant only."""

import pytest

from core.clock import to_ns
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries.points import Point
from timeseries.store import Store, write

SECRETS = ("project_hydra_watts", "hydra_rack")
PLACES = (
    "/api/v1/metrics",
    "/api/v1/metrics/gpu",
    "/api/v1/samples/export?measurement=gpu",
)


@pytest.fixture(autouse=True)
def _samples(store: Store, cast: Cast, clock: FrozenClock) -> None:
    """Acme and globex measure GPUs, globex with a field and a tag of its own."""
    now_ns = to_ns(clock.now) - 1
    ours = Point("gpu", {"gpu": "0"}, {"power_watts": 300.0}, now_ns)
    theirs = Point("gpu", {"gpu": "0", "hydra_rack": "7"}, {"project_hydra_watts": 1.0}, now_ns)
    write(store, [ours], identity={"tenant": cast.acme.id, "appliance": "a1"})
    write(store, [theirs], identity={"tenant": cast.globex.id, "appliance": "g1"})


@pytest.mark.parametrize("place", PLACES)
def test_another_tenants_names_are_hidden(alice: Browser, place: str) -> None:
    answer = alice.get(place)

    assert answer.status_code == 200
    assert "gpu" in answer.text
    for secret in SECRETS:
        assert secret not in answer.text


@pytest.mark.parametrize("place", PLACES[1:])
def test_the_owner_sees_its_names(charlie: Browser, place: str) -> None:
    text = charlie.get(place).text

    assert all(secret in text for secret in SECRETS)
    assert "power_watts" not in text.replace("hydra_watts", "")


def names_of(browser: Browser, path: str, name: str = "name") -> list[str]:
    answer = browser.get(f"/api/v1/{path}").json
    assert answer is not None
    assert answer["total"] >= len(answer["items"])
    return [item[name] for item in answer["items"]]


def test_a_search_finds_own_and_declared_metrics_by_their_words(
    alice: Browser, charlie: Browser
) -> None:
    assert names_of(alice, "metric-fields?search=gpu power")[0] == "gpu.power_watts"
    assert "gpu.power_watts" in names_of(alice, "metric-fields?search=GPU draw")
    assert names_of(alice, "metric-fields?search=hydra") == []
    assert names_of(charlie, "metric-fields?search=hydra") == ["gpu.project_hydra_watts"]
    first = charlie.get("/api/v1/metric-fields?search=hydra").json
    assert first is not None
    shown = {key: first["items"][0][key] for key in ("unit", "tags", "has_samples")}
    assert shown == {"unit": "W", "tags": ["appliance", "gpu", "hydra_rack"], "has_samples": True}


def test_the_values_of_a_tag_are_those_of_the_own_samples(alice: Browser, charlie: Browser) -> None:
    assert names_of(charlie, "metrics/gpu/tags/hydra_rack", "value") == ["7"]
    assert alice.get("/api/v1/metrics/gpu/tags/hydra_rack").status_code == 404
    assert names_of(alice, "metrics/gpu/tags/appliance", "value") == ["a1"]
    assert names_of(alice, "metrics/gpu/tags/gpu?search=9", "value") == []


def test_the_operator_sees_all_fields(olivia: Browser) -> None:
    answer = olivia.get("/api/v1/metrics/gpu").json

    assert answer is not None
    assert [field["name"] for field in answer["fields"]] == ["power_watts", "project_hydra_watts"]
    assert answer["tags"] == ["tenant", "appliance", "gpu", "hydra_rack"]


def test_a_measurement_of_other_tenants_is_404(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    point = Point("secret", {}, {"x": 1.0}, to_ns(clock.now) - 1)
    write(store, [point], identity={"tenant": cast.globex.id, "appliance": "g1"})

    foreign, missing = bob.get("/api/v1/metrics/secret"), bob.get("/api/v1/metrics/nothing")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.text == missing.text.replace("nothing", "secret")
