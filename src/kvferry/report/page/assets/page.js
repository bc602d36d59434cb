"use strict";
// Draws every figure of the page and draws it again when colours or width change. Colours are names of the
// style sheet in the figures' data, so that light and dark are written in one place.
(async () => {
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 600px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const COLOUR = /^var\((--[\w-]+)\)$/;

  const load = async () => {
    const packed = atob(document.getElementById("library").textContent);
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    // Both have done their work; a saved or printed page need not hold them twice.
    script.remove();
  };

  const painted = (value, style) => {
    if (typeof value === "string") {
      const name = COLOUR.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => painted(item, style));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, style)]));
    return value;
  };

  const merged = (under, over) => {
    const result = { ...under };
    for (const [key, value] of Object.entries(over)) {
      const both = value && typeof value === "object" && !Array.isArray(value);
      result[key] = both ? merged(result[key] ?? {}, value) : value;
    }
    return result;
  };

  const base = (style) => {
    const axis = {
      gridcolor: "var(--grid)", linecolor: "var(--line)", tickcolor: "var(--line)", zeroline: false,
      tickfont: { color: "var(--soft)" }, tickangle: 0,
      title: { font: { color: "var(--soft)", size: narrow.matches ? 11 : 12.5 }, standoff: 10 },
      automargin: true, fixedrange: narrow.matches, spikecolor: "var(--faint)", spikethickness: 1,
      spikedash: "dot", ticklabelstandoff: 4,
    };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.fontFamily, size: narrow.matches ? 11 : 12.5, color: "var(--ink)" },
      margin: { l: 8, r: narrow.matches ? 8 : 16, t: 8, b: 8 },
      hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--line)", align: "left",
        font: { family: style.fontFamily, size: 12.5, color: "var(--ink)" } },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.03, yanchor: "bottom",
        font: { color: "var(--soft)" }, bgcolor: "rgba(0,0,0,0)", itemwidth: 30 },
      xaxis: axis, yaxis: axis, dragmode: narrow.matches ? false : "zoom", bargap: 0.18,
    };
  };

  // A note's `name` is its short form.
  const shortened = (layout) => {
    if (!narrow.matches || !layout.annotations) return layout;
    return { ...layout, annotations: layout.annotations.map((note) => ({ ...note, text: note.name ?? note.text })) };
  };

  // Ticks that we set ourselves are ours to thin out, where the chart is too narrow for all of them.
  const thinned = (layout, width) => {
    const axis = layout.xaxis;
    const most = Math.max(3, Math.floor((width - 70) / 64));
    if (!axis.tickvals || axis.tickvals.length <= most) return layout;
    const keep = Math.ceil(axis.tickvals.length / most);
    const some = (list) => list.filter((_, index) => index % keep === 0);
    return { ...layout, xaxis: { ...axis, tickvals: some(axis.tickvals), ticktext: some(axis.ticktext) } };
  };

  const draw = () => {
    const style = getComputedStyle(document.body);
    const config = { responsive: true, displayModeBar: false, showTips: false };
    return Promise.all(
      Object.entries(figures).map(([name, figure]) => {
        const { data, layout } = painted({ data: figure.data, layout: merged(base(style), figure.layout) }, style);
        return Plotly.react(name, data, shortened(thinned(layout, document.getElementById(name).clientWidth)), config);
      }),
    );
  };

  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const button = document.getElementById("theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); draw(); });
  dark.addEventListener("change", () => { name(); draw(); });
  narrow.addEventListener("change", draw);
  name();
  button.hidden = false;

  try {
    await load();
    await draw();
    root.dataset.drawn = String(Object.keys(figures).length);
  } catch (error) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = `The charts could not be drawn (${error.message}); the tables hold the same numbers.`;
    trouble.hidden = false;
  }
})();
