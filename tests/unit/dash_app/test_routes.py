import pytest

from dash_app.routes import Route, Tier, appliance_path, gpu_path, job_path, parse_path


@pytest.mark.parametrize("path", ["/dashboards/", "/dashboards", None, ""])
def test_the_root_is_the_fleet(path: str | None) -> None:
    assert parse_path(path) == Route(Tier.FLEET)


def test_each_tier_is_reached_by_the_path_that_links_to_it() -> None:
    assert parse_path(appliance_path("a1")) == Route(Tier.APPLIANCE, "a1")
    assert parse_path(gpu_path("a1", "7")) == Route(Tier.GPU, "a1", "7")
    assert parse_path(job_path("j1")) == Route(Tier.JOB, "j1")


def test_an_id_with_a_slash_stays_one_segment() -> None:
    assert parse_path(appliance_path("a/../b")) == Route(Tier.APPLIANCE, "a/../b")


@pytest.mark.parametrize(
    "path", ["/dashboards/nope", "/dashboards/appliances/", "/dashboards/jobs/a/b"]
)
def test_any_other_path_is_missing(path: str) -> None:
    assert parse_path(path).tier is Tier.MISSING
