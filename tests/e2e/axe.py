"""What is wrong with a page as it is shown: by axe-core, and by the width of things."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as NeverError

# What axe calls worse than an annoyance; the rest is taste.
FAULTS = {"serious", "critical"}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
# The API reference is Swagger UI's: its rows are buttons with a lock within, which can be reached.
IN_VENDORED = {"nested-interactive": "opblock-summary-control"}
# A chart follows its panel's new width a moment later.
SETTLED_MS = 5_000

TOO_WIDE = """() => {
  const root = document.documentElement, found = [];
  const extra = root.scrollWidth - window.innerWidth;
  if (extra > 0) found.push(`the page is ${extra} px wider than the window`);
  for (const table of document.querySelectorAll("table.vd-table")) {
    const place = table.parentElement, spill = table.offsetWidth - place.clientWidth;
    if (spill > 1 && getComputedStyle(place).overflowX !== "auto")
      found.push(`a table is ${spill} px wider than its panel: ${table.innerText.slice(0, 60)}`);
  }
  return found;
}"""


def faults_of(page: Page) -> list[str]:
    """Return what axe finds in the page, and what has not the place that it needs."""
    page.evaluate(f"() => window.axe || (() => {{ {AXE_SCRIPT} }})()")
    found: list[dict[str, Any]] = page.evaluate(
        "rules => axe.run(rules).then(found => found.violations)", RULES
    )
    return [
        f"{violation['id']}: {node['html'][:150]} {' '.join(node['failureSummary'].split())}"
        for violation in found
        if violation["impact"] in FAULTS
        for node in violation["nodes"]
        if IN_VENDORED.get(violation["id"], "\n") not in node["html"]
    ] + _too_wide(page)


def _too_wide(page: Page) -> list[str]:
    """Return what is wider than the place it has: the page, or a table in its panel."""
    try:
        page.wait_for_function(f"() => ({TOO_WIDE})().length === 0", timeout=SETTLED_MS)
    except NeverError:
        found: list[str] = page.evaluate(TOO_WIDE)
        return found
    return []
