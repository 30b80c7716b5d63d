"use strict";
// Draws the charts of the page from its contents. Everything else is there without a script.
(function () {
  const state = {};   // What a reader chose, by the name of a chart: it outlives a redraw.
  const sorted = {};  // The column a table is sorted by, and which way.
  const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  let drawn = [];

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { lines: [0, 1, 2, 3, 4, 5, 6, 7].map((n) => of("--c" + n)), text: of("--soft"), rule: of("--rule") };
  }

  function chosen(chart) {
    const mine = state[chart.name] || (state[chart.name] = { lines: {}, single: false });
    for (const line of chart.lines) if (!(line.key in mine.lines)) mine.lines[line.key] = line.shown;
    return mine;
  }

  // One table of numbers for uPlot, and how each of its columns is drawn.
  function columns(chart, mine, paint) {
    const tables = [], series = [{}], bands = [], means = [];
    for (const line of chart.lines) {
      if (!mine.lines[line.key]) continue;
      const colour = paint.lines[line.mark % 8], table = [line.x, line.mean];
      const dash = dashes[(line.mark + Math.floor(line.mark / 8)) % 4];
      means.push({ label: line.label, column: series.length });
      series.push({ label: line.label, stroke: colour, width: 2, dash: dash.length ? dash : undefined, spanGaps: true, points: { show: line.x.length < 2 } });
      if (mine.single && line.single) {
        for (const seed in line.single) {
          table.push(line.single[seed]);
          series.push({ stroke: colour + "99", width: 1, spanGaps: true, points: { show: false } });
        }
      } else if (line.low.length) {
        table.push(line.high, line.low);
        bands.push({ series: [series.length, series.length + 1], fill: colour + "22" });
        for (let n = 0; n < 2; n++) series.push({ stroke: undefined, width: 0, spanGaps: true, points: { show: false } });
      }
      tables.push(table);
    }
    return { data: tables.length ? uPlot.join(tables) : [[0], []], series, bands, means };
  }

  function draw(figure, chart) {
    const place = figure.querySelector(".plot"), readout = figure.querySelector(".readout");
    const mine = chosen(chart), paint = colours();
    let plot = null;

    function tell(u) {
      const at = u.cursor.idx, parts = [];
      if (u.means) mine.at = { left: u.cursor.left, top: u.cursor.top };
      if (at == null) { readout.textContent = "\u00a0"; return; }
      for (const mean of u.means) {
        const value = u.data[mean.column][at];
        if (value != null) parts.push(mean.label + " " + value);
      }
      readout.textContent = chart.x + " " + u.data[0][at] + ": " + (parts.join(", ") || "nothing measured");
    }

    function zoom(u) {
      if (u.select.width > 0) mine.zoom = { min: u.posToVal(u.select.left, "x"), max: u.posToVal(u.select.left + u.select.width, "x") };
    }

    function make() {
      if (plot) plot.destroy();
      const made = columns(chart, mine, paint), font = "12px system-ui, sans-serif";
      const width = Math.max(280, place.clientWidth), height = Math.round(Math.min(420, Math.max(240, width * 0.5)));
      const whole = [1, 2, 5].flatMap((n) => [n, 10 * n, 100 * n, 1000 * n, 10000 * n]).sort((a, b) => a - b);
      // Numbers with many digits, as the loss of a run that diverged, would be cut off at the edge.
      const short = (u, ticks) => ticks.map((n) => n === 0 ? "0" : Math.abs(n) >= 1e5 || Math.abs(n) < 1e-3 ? n.toExponential().replace("e+", "e") : String(Number(n.toPrecision(6))));
      const axis = (label, size) => ({ label, values: short, incrs: label === "round" ? whole : undefined, stroke: paint.text, font, labelFont: font, size, labelSize: 18, grid: { stroke: paint.rule, width: 1 }, ticks: { show: false } });
      plot = new uPlot({
        width, height, series: made.series, bands: made.bands, legend: { show: false },
        scales: { x: { time: false } }, axes: [axis(chart.x, 36), axis(chart.y, 50)],
        cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 } }, hooks: { setCursor: [tell], setSelect: [zoom] },
      }, made.data, place);
      plot.means = made.means;
      if (mine.zoom) plot.setScale("x", mine.zoom);
      if (mine.at && mine.at.left >= 0) plot.setCursor(mine.at);
    }

    function step(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way || !plot) return;
      event.preventDefault();
      const last = plot.data[0].length - 1, now = plot.cursor.idx;
      const at = now == null ? (way > 0 ? 0 : last) : Math.min(last, Math.max(0, now + way));
      plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top: 10 });
    }

    for (const button of figure.querySelectorAll(".legend button")) {
      const line = chart.lines[button.dataset.line];
      const show = () => button.setAttribute("aria-pressed", String(line ? mine.lines[line.key] : mine.single));
      show();
      button.onclick = () => {
        if (line) mine.lines[line.key] = !mine.lines[line.key]; else mine.single = !mine.single;
        show();
        make();
      };
    }
    figure.querySelector(".still").hidden = true;
    for (const part of [place, readout, figure.querySelector(".legend")]) part.hidden = false;
    readout.textContent = "\u00a0";
    place.onkeydown = step;
    place.ondblclick = () => { mine.zoom = null; };
    make();
    let width = place.clientWidth;
    const watch = new ResizeObserver(() => { if (place.clientWidth && place.clientWidth !== width) { width = place.clientWidth; make(); } });
    watch.observe(place);
    return () => { watch.disconnect(); plot.destroy(); };
  }

  function sort(table, place, up) {
    const body = table.tBodies[0], heads = table.tHead.rows[0].cells;
    const value = (row) => { const cell = row.cells[place]; return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent; };
    const rows = Array.from(body.rows).sort((a, b) => {
      const one = value(a), other = value(b);
      // Blanks come last, whichever way.
      if ((one === "") !== (other === "")) return one === "" ? 1 : -1;
      const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true });
      return up ? order : -order;
    });
    body.append(...rows);
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[place].setAttribute("aria-sort", up ? "ascending" : "descending");
    sorted[table.id] = [place, up];
  }

  function sortable(table) {
    Array.from(table.tHead.rows[0].cells).forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => sort(table, place, head.getAttribute("aria-sort") === (head.classList.contains("n") ? "descending" : "ascending") ? head.classList.contains("n") : !head.classList.contains("n"));
    });
    if (table.id in sorted && sorted[table.id][0] < table.tHead.rows[0].cells.length) sort(table, ...sorted[table.id]);
  }

  let current = null;

  // Draws all of it, as often as it is called. `fresh.main`: the words and tables, where they are new, too.
  function show(fresh) {
    current = fresh;
    for (const end of drawn) end();
    drawn = [];
    if (fresh.main !== undefined) {
      const open = Array.from(document.querySelectorAll("main details")).map((one) => [one.id, one.open]);
      const focus = document.activeElement && document.activeElement.id;
      document.getElementById("main").innerHTML = fresh.main;
      for (const [id, was] of open) { const one = document.getElementById(id); if (one) one.open = was; }
      if (focus && document.getElementById(focus)) document.getElementById(focus).focus({ preventScroll: true });
    }
    document.querySelectorAll("main table.sheet").forEach((table) => { if (!table.tHead.querySelector("button")) sortable(table); });
    const figures = Array.from(document.querySelectorAll("figure[data-chart]"));
    for (const chart of fresh.charts) {
      const figure = figures.find((one) => one.dataset.chart === chart.name);
      if (figure) drawn.push(draw(figure, chart));
    }
  }

  show(JSON.parse(document.getElementById("contents").textContent));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show({ charts: current.charts }));
  // Paper cannot be unfolded: what is folded is printed, all but the list of every run, which is also a file.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = Array.from(document.querySelectorAll("main details:not([open]):not(#all-runs)"));
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  window.fewfedPage = { show };
})();
