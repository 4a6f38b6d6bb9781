"""Accessibility errors of a page, found by axe-core, and elements that are too wide."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as NeverError

# The impacts that axe ranks above an annoyance.
FAULTS = {"serious", "critical"}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
# The API reference is Swagger UI's: its rows are buttons with a lock within, which can be reached.
IN_VENDORED = {"nested-interactive": "opblock-summary-control"}
# A chart follows its panel's new width a moment later.
SETTLED_MS = 5_000

MARK_CONTROLS = """() => {
  const seen = new Set();
  let count = 0;
  const controls = "a[href], button, select, summary, label, input:not([type=hidden])";
  for (const one of document.querySelectorAll(controls)) {
    const kind = [one.tagName, one.className, one.parentElement.className, one.ariaCurrent].join();
    if (seen.has(kind) || one.disabled || one.offsetParent === null) continue;
    seen.add(kind);
    one.dataset.tried = count++;
  }
  return count;
}"""
# A refresh may have replaced the control.
CONTRAST = """async selector => {
  if (document.querySelector(selector) === null) return [];
  const found = await axe.run(selector, {runOnly: ["color-contrast"]});
  // Of equal colors axe only says that somebody should look.
  const isEqual = node => node.any.some(check => check.data?.messageKey === "equalRatio");
  const nodes = [
    ...found.violations.flatMap(one => one.nodes),
    ...found.incomplete.flatMap(one => one.nodes).filter(isEqual),
  ];
  return nodes.map(node =>
    node.html.slice(0, 120) + " " + node.failureSummary.replace(/\\s+/g, " "));
}"""

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
    violations: list[dict[str, Any]] = page.evaluate(
        "rules => axe.run(rules).then(found => found.violations)", RULES
    )
    return [
        f"{violation['id']}: {node['html'][:150]} {' '.join(node['failureSummary'].split())}"
        for violation in violations
        if violation["impact"] in FAULTS
        for node in violation["nodes"]
        if IN_VENDORED.get(violation["id"], "\n") not in node["html"]
    ] + _too_wide(page)


def faults_of_states(page: Page) -> list[str]:
    """Return what of the page's controls can't be read while hovered over, focused, or pressed.

    One control of each class is tried. The looks of `walking` have no transitions.
    """
    page.evaluate(f"() => window.axe || (() => {{ {AXE_SCRIPT} }})()")
    faults = []
    for number in range(page.evaluate(MARK_CONTROLS)):
        control = page.locator(f"[data-tried='{number}']")
        if not control.count() or not control.is_visible():
            continue
        control.scroll_into_view_if_needed()
        control.hover(force=True)
        faults += [f"hover: {fault}" for fault in _unreadable(page, number)]
        control.focus()
        faults += [f"focus: {fault}" for fault in _unreadable(page, number)]
        page.mouse.down()
        faults += [f"active: {fault}" for fault in _unreadable(page, number)]
        # Released elsewhere, it isn't clicked.
        page.mouse.move(1, 1)
        page.mouse.up()
    return faults


def _unreadable(page: Page, number: int) -> list[str]:
    unreadable: list[str] = page.evaluate(CONTRAST, f"[data-tried='{number}']")
    return unreadable


def _too_wide(page: Page) -> list[str]:
    """Return what is wider than the place it has: the page, or a table in its panel."""
    try:
        page.wait_for_function(f"() => ({TOO_WIDE})().length === 0", timeout=SETTLED_MS)
    except NeverError:
        too_wide: list[str] = page.evaluate(TOO_WIDE)
        return too_wide
    return []
