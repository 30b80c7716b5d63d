"use strict";
// Asks the server again and again for what has changed: progress first, then the report below it, drawn anew in place.
(function () {
  const SOON = 1000, HIDDEN = 15000, LOST = 2000, PATIENCE = 15000;
  const at = (id) => document.getElementById(id);
  let tag = null, report = null, waiting = null, timer = null, lost = false, asked = false, busy = false, held = false, drawing = 0, folders = [], done = "";

  function say(node, text) { if (node.textContent !== text) node.textContent = text; }

  // Children of a list or table by a key each: what stays is kept as it is, so that focus and places stay, too.
  function keyed(parent, items, key, make, fill) {
    const old = new Map(Array.from(parent.children).map((one) => [one.dataset.key, one]));
    let place = parent.firstElementChild;
    for (const item of items) {
      const name = key(item);
      let node = old.get(name);
      if (node) old.delete(name); else { node = make(item); node.dataset.key = name; }
      fill(node, item);
      if (node === place) place = place.nextElementSibling; else parent.insertBefore(node, place);
    }
    for (const node of old.values()) node.remove();
  }

  function element(name, attributes, children) {
    const made = document.createElement(name);
    for (const each in attributes || {}) made.setAttribute(each, attributes[each]);
    made.append(...(children || []));
    return made;
  }

  function bar(node, done, of) {
    node.hidden = !of;
    if (of) { node.max = of; node.value = Math.min(done, of); }
  }

  function showRun(row, run) {
    const cells = row.cells;
    say(cells[0], run.method.replaceAll("(", "(\u200b") + (run.seed === null ? "" : ", seed " + run.seed));
    say(cells[1], run.part < 1 ? "being read, " + Math.floor(100 * run.part) + " %" : run.state);
    say(cells[2], run.done + " of " + (run.asked === null ? "?" : run.asked));
    bar(cells[3].firstElementChild, run.done, run.asked);
    say(cells[4], run.left);
    say(cells[5].firstElementChild, shortened(run.folder));
    say(cells[5].lastElementChild, run.problem);
  }

  // A folder from the one that is watched, where that is one.
  function shortened(folder) {
    const above = folders.length === 1 ? folders[0].replace(/\/+$/, "") + "/" : "";
    return above && folder.startsWith(above) ? folder.slice(above.length) : folder;
  }

  function runRow(run) {
    const progress = element("progress", { "aria-label": "Rounds done by " + (run.method || run.folder) + (run.seed === null ? "" : ", seed " + run.seed) });
    const folder = element("td", { class: "live-folder" }, [element("span"), element("span", { class: "live-problem" })]);
    return element("tr", {}, [element("th", { scope: "row" }), element("td"), element("td", { class: "n" }), element("td", {}, [progress]), element("td"), folder]);
  }

  function sum(live) {
    const count = live.runs.length, states = live.states, parts = [];
    if (!count) return "No run yet in " + live.folders.join(", ") + ".";
    if (live.unread) parts.push(live.unread + " being read");
    for (const state in states) if (state !== "finished") parts.push(states[state] + " " + state);
    const finished = (states.finished || 0) + " of " + count + (count === 1 ? " run" : " runs") + " finished";
    const rounds = live.asked ? "; " + live.done + " of " + live.asked + " rounds" : "";
    return finished + (parts.length ? ", " + parts.join(", ") : "") + rounds + (live.left ? "; " + live.left + " left" : "") + ".";
  }

  const COLUMNS = ["site", "connected", "rows", "MB to it", "MB from it", "accuracy", "strikes", "remarks"];

  function siteRow() {
    return element("tr", {}, COLUMNS.map((name, n) => n ? element("td", n > 1 && n < 7 ? { class: "n" } : {}) : element("th", { scope: "row" })));
  }

  function showSite(row, site) {
    const shown = [site.name, site.present === null ? "not known" : site.present ? "yes" : "away", site.rows === null ? "" : String(site.rows), site.mb_to.toFixed(2), site.mb_from.toFixed(2), site.accuracy === null ? "" : (100 * site.accuracy).toFixed(1) + " %", String(site.strikes), site.remarks];
    shown.forEach((text, n) => say(row.cells[n], text));
  }

  function federationPart(federation) {
    const head = element("tr", {}, COLUMNS.map((name, n) => element("th", n > 1 && n < 7 ? { scope: "col", class: "n" } : { scope: "col" }, [name])));
    const table = element("table", { class: "sheet" }, [element("caption"), element("thead", {}, [head]), element("tbody")]);
    const region = element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Sites of " + federation.folder }, [table]);
    return element("div", {}, [element("h3"), element("p"), region]);
  }

  function showFederation(part, federation) {
    const [head, told, region] = part.children, there = federation.sites.filter((site) => site.present).length;
    const known = federation.sites.some((site) => site.present !== null);
    say(head, "Sites of " + federation.folder);
    const connected = known ? ", " + there + " of " + federation.sites.length + " sites connected" : "";
    say(told, federation.problem || federation.state + ": round " + federation.round + " of " + federation.rounds + connected + ", as of " + federation.written + " ago.");
    region.hidden = !federation.sites.length;
    say(region.firstElementChild.caption, "Sites as the coordinator last wrote them down.");
    keyed(region.firstElementChild.tBodies[0], federation.sites, (site) => site.name, siteRow, showSite);
  }

  function showProgress(live) {
    if (!live.runs) { say(at("live-sum"), live.fault || ""); return; }
    folders = live.folders;
    const going = live.runs.filter((run) => run.state !== "finished" || run.part < 1);
    say(at("live-sum"), sum(live));
    bar(at("live-bar"), live.done, live.asked);
    keyed(at("live-runs").querySelector("tbody"), going, (run) => run.folder, runRow, showRun);
    at("live-runs").hidden = !going.length;
    keyed(at("live-sites"), live.federations, (one) => one.folder, federationPart, showFederation);
    const remarks = live.remarks.concat(live.fault ? ["The last look went wrong: " + live.fault] : []);
    keyed(at("live-remarks"), remarks, (text) => text, () => element("li"), say);
    at("live-remarks").hidden = !remarks.length;
    done = live.asked && live.done < live.asked ? Math.floor(100 * live.done / live.asked) + " %, " : "";
  }

  // Where a reader is: the element that has the focus, by the way to it, and how far everything is scrolled.
  function remembered() {
    const main = at("main"), way = [];
    let node = document.activeElement;
    if (main.contains(node) && node !== main) for (; node !== main; node = node.parentElement) way.unshift(Array.from(node.parentElement.children).indexOf(node));
    const name = document.activeElement && document.activeElement.nodeName;
    const scrolled = Array.from(main.querySelectorAll(".scroll")).map((one) => [one.scrollLeft, one.scrollTop]);
    const top = window.scrollY;
    return () => {
      main.querySelectorAll(".scroll").forEach((one, n) => { if (scrolled[n]) { one.scrollLeft = scrolled[n][0]; one.scrollTop = scrolled[n][1]; } });
      let found = main;
      for (const n of way) found = found && found.children[n];
      if (way.length && found && found.nodeName === name && found !== document.activeElement) found.focus({ preventScroll: true });
      window.scrollTo({ top, behavior: "instant" });
    };
  }

  // Somebody marks a text or draws in a chart: it would be taken away.
  function isBusy() {
    const selection = getSelection();
    return held || selection && !selection.isCollapsed && at("main").contains(selection.anchorNode);
  }

  function showReport() {
    if (!waiting || isBusy()) return;  // The next look tries again.
    const began = performance.now();
    const restore = remembered(), fresh = waiting;
    waiting = null;
    report = fresh.report;
    window.fewfedPage.show(fresh);
    restore();
    drawing = performance.now() - began;
  }

  function link(isThere) {
    const node = at("live-link");
    if (isThere && (lost || !asked)) say(node, "This page follows the runs and changes by itself.");
    if (!isThere) say(node, "The server of this page does not answer: what is shown may be old. It is asked again and again; 'fewfed watch' starts it again.");
    node.classList.toggle("lost", !isThere);
    lost = !isThere;
    asked = true;
  }

  async function ask() {
    if (busy) return;
    busy = true;
    try {
      const fresh = await fetched();
      if (fresh) {
        if (fresh.live) showProgress(fresh.live);
        waiting = fresh.main !== undefined && (fresh.report === undefined || fresh.report !== report) ? fresh : null;
      }
      if (fresh !== undefined) {
        showReport();
        // What the page is about may have changed: it is often open before there is a run.
        document.title = done + at("main").querySelector("h1").textContent;
      }
      link(fresh !== undefined);
    } finally {
      busy = false;
      // Never more than a part of a slow machine's time.
      next(document.hidden ? HIDDEN : lost ? LOST : Math.max(SOON, 3 * drawing));
    }
  }

  // What is new, null where nothing is, undefined where nobody answers.
  async function fetched() {
    try {
      const answer = await fetch(document.documentElement.dataset.live, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {}, signal: AbortSignal.timeout(PATIENCE) });
      if (answer.status === 304) return null;
      if (answer.status !== 200) throw new Error("answered " + answer.status);
      const fresh = await answer.json();
      tag = answer.headers.get("ETag");
      return fresh;
    } catch (error) {
      tag = null;
      return undefined;
    }
  }

  function next(pause) {
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  }

  document.addEventListener("pointerdown", (event) => { held = at("main").contains(event.target); });
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { held = false; });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) next(0); });
  ask();
})();
