"use strict";

// A chart is drawn once its data are there: Dash would first draw an empty one, which takes as long.
(() => {
  const { react } = window.Plotly;
  const listeners = new WeakMap();

  window.Plotly.react = (chart, figure, ...others) => {
    if (figure.layout?.meta?.is_loading && !chart.classList.contains("js-plotly-plot")) {
      const added = [];
      listeners.set(chart, added);
      // Plotly replaces it by its own when it draws the chart.
      chart.on = (...listener) => added.push(listener);
      return Promise.resolve(chart);
    }
    const drawn = react(chart, figure, ...others);
    for (const listener of listeners.get(chart) || []) chart.on(...listener);
    listeners.delete(chart);
    return drawn;
  };
})();
