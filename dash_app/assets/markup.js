"use strict";

// An area of HTML, as one component of Dash. Its links to dashboards don't load the page anew.
(() => {
  const Markup = ({ id, className, children }) => window.React.createElement("div", {
    id,
    className,
    "data-vdd-markup": "",
    dangerouslySetInnerHTML: { __html: children || "" },
  });
  window.vedette_dash = { Markup };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-vdd-markup] a[href^='/dashboards/']");
    if (!link || event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    window.history.pushState({}, "", link.href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  });
})();
