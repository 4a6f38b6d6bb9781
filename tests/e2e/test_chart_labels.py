"""Labels in and below charts are readable: nothing covers or cuts them."""

from collections.abc import Callable

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.deployment import ALICE
from tests.e2e.test_dashboards import SLOW_MS, panel

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(240)]
SignIn = Callable[..., Page]
WIDTHS = (1440, 390)
IS_WHOLE = "all => all.every(box => box.scrollHeight <= box.clientHeight)"
NAME_OF_LAST_GPU = "GPU 7"


def boxes(elements: Locator) -> list[FloatRect]:
    """Return the boxes of visible elements, from top to bottom."""
    seen = [
        box for box in (element.bounding_box() for element in elements.all()) if box is not None
    ]
    return sorted(seen, key=lambda box: box["y"])


def are_apart(rows: list[FloatRect]) -> bool:
    ends = [row["y"] + row["height"] for row in rows]
    return all(end <= row["y"] + 0.5 for end, row in zip(ends, rows[1:], strict=False))


def test_thresholds_are_named_below_their_chart_on_lines_of_their_own(sign_in: SignIn) -> None:
    page = sign_in(ALICE, path="/dashboards/?refresh=2s")
    page.get_by_role("link", name="dgx-04", exact=True).click()
    page.get_by_role("link", name="GPU 0", exact=True).first.click()
    temperature = panel(page, "gpu-temperature")
    temperature.locator(".vdd-threshold").first.wait_for(timeout=SLOW_MS)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        (chart,) = boxes(page.locator("#gpu-temperature"))
        names = boxes(temperature.locator(".vdd-threshold"))
        assert len(names) > 1
        assert are_apart([chart, *names])
        # Text beside the ticks would be over the data.
        expect(page.locator("#gpu-temperature .shape-label")).to_have_count(0)
        assert page.locator(".vdd-legend").evaluate_all(IS_WHOLE)


def test_every_row_of_a_heat_map_has_its_name_and_a_scale_has_units(sign_in: SignIn) -> None:
    page = sign_in(ALICE, path="/dashboards/?refresh=off&text=dgx-0&color=power")
    heat = page.locator("#fleet-heat")
    expect(heat.locator(".ytick").filter(has_text=NAME_OF_LAST_GPU).first).to_be_visible(
        timeout=SLOW_MS
    )
    rows = heat.locator(".js-plotly-plot").evaluate("chart => chart.data[0].y.length")
    names = boxes(heat.locator(".ytick text"))
    assert len(names) == rows
    assert are_apart([{**name, "height": name["height"] - 2} for name in names])
    expect(panel(page, "fleet-heat").locator(".vdd-scale")).to_contain_text("0 W")
