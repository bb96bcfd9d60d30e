// Draws the page of predict.py --html. The grid has every prediction; this script chooses, compares and draws them, and computes no prediction.
// Each shown figure is a <data> element (in drawings: an attribute) with its value, and the name by which predict.py --json has it.
"use strict";
const grid = JSON.parse(document.getElementById("grid").textContent);
const axes = grid.axes, AXES = ["model", "machine", "network", "straggler", "topology", "workers", "servers"], CHOICES = [...AXES, "beside"];
const place = (name) => document.getElementById(name);
const points = new Map(grid.points.map((p) => [p[0], p]));
const chosen = {};
let lines = "time";

// ---------------------------------------------------------------- elements
function make(space, name, attributes, parts) {
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...parts.flat(3).filter((part) => part !== null && part !== undefined && part !== ""));
  return made;
}
const el = (name, attributes, ...parts) => make(null, name, attributes, parts);
const svg = (name, attributes, ...parts) => make("http://www.w3.org/2000/svg", name, attributes, parts);
const text = (css, x, y, words, anchor, more) => svg("text", {class: css, x, y, "text-anchor": anchor, ...more}, words);
const fill = (name, ...parts) => place(name).replaceChildren(...parts.flat(3).filter((part) => part !== null && part !== ""));
const named = (of, value) => ({"data-of": of, value});
const figure = (of, value, words) => el("data", named(of, value), words);
const ruler = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(document.body).fontFamily;
function wide(words, bold) {  // of drawn text (style.py's "tick"), in pixels
  ruler.font = `${bold ? "600 " : ""}12px ${family}`;
  return ruler.measureText(words).width;
}

// ---------------------------------------------------------------- numbers
function digits(value, count = 3) {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  const rounded = Number(value.toPrecision(count));
  return rounded.toLocaleString("en-US", {minimumFractionDigits: Math.max(0, count - whole), maximumFractionDigits: Math.max(0, count - whole)});
}
function scaled(value, units, step) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(value) >= step * 0.9995) { value /= step; i++; }
  return digits(value) + " " + units[i];
}
const seconds = (value) => value === 0 ? "0 s" : value >= 0.9995 ? digits(value) + " s" : value >= 0.0009995 ? digits(1e3 * value) + " ms" : digits(1e6 * value) + " \u00b5s";
const bytes = (value) => scaled(value, ["bytes", "KiB", "MiB", "GiB", "TiB"], 1024);
const rate = (value) => scaled(value, ["", "thousand", "million", "billion"], 1000).trimEnd();
const exactly = (value) => value.toLocaleString("en-US");
const percent = (value) => digits(100 * value, 2) + "%";
const error = (p) => p.error ? el("span", {class: "soft"}, ` \u00b1${percent(p.error.mean)}`) : "";  // beside each time: how far such predictions were off

// ---------------------------------------------------------------- predictions
const isStar = (topology) => axes.topology[topology].star;
function predicted(choice) {
  let key = 0;
  for (const axis of AXES) key = key * axes[axis].length + (axis === "servers" && !isStar(choice.topology) ? 0 : choice[axis]);
  const p = points.get(key);
  if (!p) return {none: "is not in this page"};
  if (p.length === 2) return {none: grid.words[p[1]]};
  const [, job, memory, wire, times, stale, limit, error, notes] = p;
  const out = {memory: grid.memories[memory], wire: grid.wires[wire], job: grid.jobs[job], room: axes.machine[choice.machine].memory_bytes};
  out.worker = out.memory.find((row) => row.role === "worker");
  out.server = out.memory.find((row) => row.role === "server");
  if (out.room && out.worker.predicted_bytes > out.room)
    out.large = `does not fit: a worker needs ${bytes(out.worker.predicted_bytes)}, its device has ${bytes(out.room)}`;
  if (!times) return out;
  const [median, p5, p95, p99, tokens, ...parts] = times;
  out.time = {median, p5, p95, p99};
  out.tokens = tokens;
  out.parts = parts;
  out.staleness = stale < 0 ? null : grid.staleness[stale];
  out.limit = grid.limits[limit];
  out.error = error < 0 ? null : grid.errors[error];
  out.notes = notes < 0 ? [] : grid.notes[notes];
  return out;
}
const choose = (changes) => ({...chosen, ...changes});
const nameOf = (topology, servers = chosen.servers) => axes.topology[topology].name +
  (isStar(topology) ? `, S = ${axes.servers[servers].name}` : "");
const sides = () => [["a", chosen.topology], ["b", chosen.beside]].filter(([side, topology]) => side === "a" || topology !== chosen.topology)
  .map(([side, topology]) => ({side, topology, name: axes.topology[topology].name, p: predicted(choose({topology}))}));

// ---------------------------------------------------------------- the answers
const LIMITS = {"compute": "faster links would change little", "worker's link": "each worker's own link is busy longest", "server's link": "N workers share the links of S servers",
  "server's update": "servers sum and update for longer than all else takes", "latency": "many small messages wait for one another", "straggler": "the others wait for a late worker"};

function answer({side, topology, name, p}) {
  const n = axes.workers[chosen.workers].name;
  if (p.none) return [el("strong", {}, "No prediction"), el("span", {class: "name"}, name), ` with N = ${n}: ${p.none}`];
  const needed = figure(`${side}.worker`, p.worker.predicted_bytes, bytes(p.worker.predicted_bytes)), memory = [" A worker takes ", needed, p.room ? ` of its device's ${bytes(p.room)}` : "",
    ` for ${p.job.micro_batch_size} sequences of ${exactly(p.job.seq_len)} tokens in ${p.job.dtype}.`];
  if (p.large) return [el("strong", {class: "no"}, "Does not fit"), el("span", {class: "name"}, name), ` with N = ${n}: a worker needs `, needed, `, its device has ${bytes(p.room)}.`];
  return [el("strong", {}, figure(`${side}.median`, p.time.median, seconds(p.time.median)), " a step", error(p)), el("span", {class: "name"}, nameOf(topology)), `, N = ${n}: `,
          figure(`${side}.tokens`, p.tokens, rate(p.tokens)), " tokens a second. Limit: ", figure(`${side}.limit`, p.limit, p.limit), ` (${LIMITS[p.limit]}).`, memory];
}

function versus(found) {
  const [a, b] = found;
  if (!b || !a.p.time || !b.p.time || a.p.large || b.p.large) return "";
  const ratio = a.p.tokens / b.p.tokens;
  if (Math.abs(ratio - 1) < 0.005) return ` Both are equally fast.`;
  return ratio > 1 ? ` It is ${digits(ratio)} times as fast as ${b.name}.` : ` ${b.name} is ${digits(1 / ratio)} times as fast.`;
}

// ---------------------------------------------------------------- bars
const legend = (entries) => el("ul", {class: "legend"}, entries.map(([css, words]) =>
  el("li", {}, svg("svg", {class: "key box", viewBox: "0 0 12 12", "aria-hidden": "true"}, svg("rect", {class: css, width: 12, height: 12, rx: 2})), words)));

// rows: [{label, css of the label, parts: [[css, name, value]], mark: [value, words], span: {p5, median, p95}, sum: [name, value]}]. Where labels would take
// more than a third of the width, each stands above its bar. room: of a device, a line at the rows that say so where it is near.
function bars(name, rows, title, show, room) {
  const width = Math.max(280, place(name).clientWidth), widest = Math.max(...rows.map((row) => wide(row.label, true))) + 10, above = widest > width / 3;
  const left = above ? 0 : widest, length = width - left - Math.max(...rows.map((row) => wide(show(row.sum[1])))) - 12;
  const end = (row) => Math.max(row.parts.reduce((sum, part) => sum + part[2], 0), row.mark ? row.mark[0] : 0, row.span ? row.span.p95 : 0);
  const most = Math.max(...rows.map(end)) || 1, shownRoom = room && room <= 2.5 * most ? room : 0, x = (value) => left + value / Math.max(most, shownRoom) * length;
  const out = [];
  let y = shownRoom ? 22 : 4;
  for (const row of rows) {
    let at = 0;
    if (above && row.label) y += 17;
    out.push(above ? text("tick " + row.css, 0, y - 5, row.label) : text("tick " + row.css, left - 10, y + 14, row.label, "end"));
    for (const [css, part, value] of row.parts) if (value > 0) {
      out.push(svg("rect", {class: css, x: x(at), y, width: Math.max(0.5, x(at + value) - x(at)), height: 20}, svg("title", {}, `${row.label}, ${part}: ${show(value)}`)));
      at += value;
    }
    if (shownRoom && row.room) out.push(svg("path", {class: "room", d: `M${x(room)} ${y - 5}v30`}));
    if (row.mark) out.push(svg("path", {class: "mark", d: `M${x(row.mark[0])} ${y - 3}v26`}, svg("title", {}, row.mark[1])));
    out.push(text("value", x(end(row)) + 7, y + 14, show(row.sum[1]), null, named(...row.sum)));
    if (row.span) {
      out.push(svg("path", {class: "span", d: `M${x(row.span.p5)} ${y + 28}H${x(row.span.p95)}M${x(row.span.p5)} ${y + 25}v6M${x(row.span.p95)} ${y + 25}v6`}),
               svg("circle", {class: "spand", cx: x(row.span.median), cy: y + 28, r: 3.2}));
      y += 16;
    }
    y += row.close ? 23 : 32;
  }
  if (shownRoom) out.push(text("tick roomt", Math.min(x(room), width - wide("device: 80.0 GiB") / 2), 12, `device: ${bytes(room)}`, "middle"));
  return svg("svg", {viewBox: `0 0 ${width} ${y}`, width, height: y, role: "img"}, svg("title", {}, title), out);
}

const head = (...cells) => el("thead", {}, el("tr", {}, cells.map((cell, i) => el("th", {scope: "col", class: i ? null : "words"}, cell))));
const row = (name, cells, css) => el("tr", {class: css}, el("th", {scope: "row"}, name), cells.map((cell) => el("td", {}, cell)));
const usable = (found) => found.filter(({p}) => !p.none);
const timed = (found) => found.filter(({p}) => p.time && !p.large);
const nothing = (found) => el("p", {class: "said"}, found.map(({name, p}) => `${name}: ${p.none || p.large}. `));
const labelled = ({side, name}) => ({label: name, css: side === "a" ? "ta" : "tb"});

function drawTime(found) {
  const ready = timed(found), missing = found.filter((each) => !ready.includes(each));
  fill("time", ready.length ? [legend(grid.parts.filter((_, i) => ready.some(({p}) => p.parts[i] > 0)).map(([, words, css]) => [css, words])),
    bars("time", ready.map((each) => ({...labelled(each), span: each.p.time, sum: [`${each.side}.mean`, each.p.parts.reduce((sum, value) => sum + value, 0)],
      parts: each.p.parts.map((value, i) => [grid.parts[i][2], grid.parts[i][1], value])})), "Time of a step by its parts", seconds)] : [], missing.length ? nothing(missing) : "");
  const rows = (names) => names.map(([words, of, value, show]) => row(words, ready.map(({side, p}) => figure(`${side}.${of}`, value(p), show(value(p))))));
  const titles = head("", ...ready.map(({name}) => name));
  fill("times", ready.length ? [titles, el("tbody", {},
    row("median", ready.map(({side, p}) => [figure(`${side}.median`, p.time.median, seconds(p.time.median)), error(p)])),
    rows([["5% of the steps take less than", "p5", (p) => p.time.p5, seconds], ["5% take more than", "p95", (p) => p.time.p95, seconds], ["1% take more than", "p99", (p) => p.time.p99, seconds]]))] : []);
  fill("parts", ready.length ? [titles.cloneNode(true), el("tbody", {}, rows(grid.parts.map(([key, words], i) => [words, key, (p) => p.parts[i], seconds])))] : []);
  // Topologies that were judged together share their sentence.
  const judged = [...new Set(ready.map(({p}) => p.error))].map((each) => [each, ready.filter(({p}) => p.error === each)]);
  fill("judged", judged.map(([each, whose]) => [whose.map(({name}) => name).join(" and "), each ? [": such predictions were off by ", figure(`${whose[0].side}.error`, each.mean, percent(each.mean)),
    " on average, at worst by ", figure(`${whose[0].side}.worst`, each.worst, percent(each.worst)), ` (${each.of}). `] : ": nothing like it was judged. "]), [...new Set(ready.flatMap(({p}) => p.notes))].map((note) => note + " "),
    ready.length && ready.every(({p}) => p.time.p5 === p.time.p95) ? "Nothing is drawn in this choice, so all steps take the same time." : "");
}

function drawMemory(found) {
  const ready = usable(found), classes = grid.classes.filter(([key]) => ready.some(({p}) => p.memory.some((m) => m.parts[key])));
  const ranks = ready.flatMap((each) => each.p.memory.map((m) => ({...each, m})));
  fill("memory", ready.length ? [legend(classes.map(([, words, css]) => [css, words])),
    bars("memory", ranks.map(({side, name, m}) => ({label: `${name} ${m.role}`, css: side === "a" ? "ta" : "tb", room: m.role === "worker", sum: [`${side}.${m.role}.predicted_bytes`, m.predicted_bytes],
      mark: m.formula_bytes ? [m.formula_bytes, `textbook formula ${m.formula}: ${bytes(m.formula_bytes)}`] : null,
      parts: grid.classes.filter(([key]) => m.parts[key]).map(([key, words, css]) => [css, words, m.parts[key]])})), "Memory per rank by class", bytes, ready[0].p.room)] : nothing(found));
  const cells = (of, value, show) => ranks.map(({side, m}) => value(m) === undefined || value(m) === null ? "\u2013" : figure(`${side}.${m.role}.${of}`, value(m), show(value(m))));
  fill("memories", ready.length ? [head("bytes", ...ranks.map(({name, m}) => `${name} ${m.role}`)), el("tbody", {},
    classes.map(([key, words]) => row(words, cells(key, (m) => m.parts[key] || 0, exactly))),
    row(el("b", {}, "all"), cells("predicted_bytes", (m) => m.predicted_bytes, exactly)),
    row("textbook", cells("formula", (m) => m.formula, (value) => value)), row("that is", cells("formula_bytes", (m) => m.formula_bytes, exactly)))] : []);
  fill("textbook", ranks.filter(({m}) => m.formula).map(({side, name, m}, i) => [i ? "; " : "Textbook: ", `${name} ${m.role} ${m.formula} = `, figure(`${side}.${m.role}.formula_bytes`, m.formula_bytes, bytes(m.formula_bytes))]), ranks.length ? "." : "");
  fill("fits", usable(found).filter(({p}) => p.large).map(({name, p}) => el("span", {class: "no"}, `${name} ${p.large}. `)),
       ready.length && ready[0].p.room ? "A GPU also holds what nobody counts beforehand: CUDA's context, NCCL, scratch of its libraries." : "");
}

function drawBytes(found) {
  const ready = usable(found), ways = [["sent", "sends", "m2"], ["received", "receives", "m0"]];
  const ranks = ready.flatMap((each) => each.p.wire.map((w) => ({...each, w})));
  fill("bytes", ranks.length ? [legend(ways.map(([key, , css]) => [css, key])),
    bars("bytes", ranks.flatMap(({side, name, w}) => ways.map(([key, verb, css], i) => ({label: `${name} ${w.role} ${verb}`, close: !i, css: side === "a" ? "ta" : "tb",
      sum: [`${side}.${w.role}.${key}`, w[key]], parts: [[css, verb, w[key]]]}))), "Bytes of a step", bytes)] : nothing(found));
  fill("wires", ranks.length ? [head("bytes", "sent", "received", "formula"), el("tbody", {}, ranks.map(({side, name, w}) =>
    el("tr", {}, el("th", {scope: "row"}, `${name} ${w.role}`), ways.map(([key]) => el("td", {}, figure(`${side}.${w.role}.${key}`, w[key], exactly(w[key])))), el("td", {class: "words"}, w.formula || ""))))] : []);
}

// ---------------------------------------------------------------- over N
const alongN = (topology) => axes.workers.map((_, workers) => predicted(choose({topology, workers})));
const fits = (p) => Boolean(p.time) && !p.large;

// Values and the stretches of N that they hold for: [[value, first, last]]
function stretches(values) {
  const out = [];
  values.forEach((value, i) => {
    if (value === null) return;
    const last = out[out.length - 1];
    if (last && last[0] === value) last[2] = i; else out.push([value, i, i]);
  });
  return out;
}
const from = ([, first, last]) => first === last ? `at N = ${axes.workers[first].name}` : `from N = ${axes.workers[first].name} to ${axes.workers[last].name}`;

function crossing(a, b) {
  const faster = axes.workers.map((_, i) => fits(a.all[i]) && fits(b.all[i]) ? (Math.abs(a.all[i].tokens / b.all[i].tokens - 1) < 0.005 ? "equal" : a.all[i].tokens > b.all[i].tokens ? a.name : b.name) : null);
  const found = stretches(faster);
  if (!found.length) return "At no N are both possible here.";
  if (found.length === 1) return found[0][0] === "equal" ? "Both are equally fast at every N." : `${found[0][0]} is faster at every N where both are possible.`;
  return "They cross: " + found.map((each) => (each[0] === "equal" ? "both are equal " : `${each[0]} is faster `) + from(each)).join(", ") + ".";
}

function powers(low, high, few) {
  const out = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) for (const m of few ? [1] : [1, 2, 5]) {
    const value = m * 10 ** k;
    if (value >= low * 0.999 && value <= high * 1.001) out.push(Number(value.toPrecision(1)));
  }
  return out;
}

// y of labels that want these places: in their order, none nearer to another than `apart`, none below `base`.
function spread(wanted, apart, base) {
  const out = [];
  for (const y of wanted) out.push(out.length ? Math.max(y, out[out.length - 1] + apart) : y);
  for (let i = out.length - 1, most = base; i >= 0 && out[i] > most; i--, most -= apart) out[i] = most;
  return out;
}

function scaleDrawing(every, of, show) {
  const values = every.flatMap(({all}) => all.filter(fits).map(of)), width = Math.max(280, place("scale").clientWidth), top = 12, base = 290;
  let low = Math.min(...values), high = Math.max(...values);
  if (high < 1.3 * low) { low /= 1.15; high *= 1.15; }
  const marks = powers(low, high, high / low > 3000), left = 12 + Math.max(...marks.map((value) => wide(show(value))), 30), right = width - 14 - Math.max(...every.map(({name}) => wide(name, true)));
  const gap = (right - left) / axes.workers.length, x = (i) => left + gap * (i + 0.5), y = (value) => base - 8 - Math.log(value / low) / Math.log(high / low) * (base - top - 16);
  const out = [svg("rect", {class: "here", x: x(chosen.workers) - gap / 2, y: top, width: gap, height: base - top})];
  for (const value of marks) out.push(svg("line", {class: "grid", x1: left, x2: right, y1: y(value), y2: y(value)}), text("tick", left - 8, y(value) + 4, show(value), "end"));
  axes.workers.forEach(({name}, i) => out.push(text(i === chosen.workers ? "tick ta" : "tick", x(i), base + 18, name, "middle")));
  out.push(text("axis", (left + right) / 2, base + 38, "workers N", "middle"));
  const labels = [], runs = {};
  for (const {name, all, side} of every) {
    const run = runs[side] = all.map((p, i) => fits(p) ? [x(i), y(of(p)), p] : null);
    out.push(svg("path", {class: "l" + side, d: run.map((at, i) => at ? `${i && run[i - 1] ? "L" : "M"}${at[0].toFixed(1)} ${at[1].toFixed(1)}` : "").join("")}, svg("title", {}, name)));
    for (const at of run) if (at) out.push(svg("circle", {class: "p" + side, cx: at[0], cy: at[1], r: side === "o" ? 2 : 4, value: of(at[2])}, svg("title", {}, `${name}: ${show(of(at[2]))}`)));
    const last = run.filter(Boolean).pop();
    if (last) labels.push([last[1], name, side]);
  }
  // A ring where the two chosen lines cross, as they are drawn: between these two N the other topology begins to be faster.
  const [one, other] = ["a", "b"].map((side) => runs[side] || []), label = (i) => `between N = ${axes.workers[i - 1].name} and N = ${axes.workers[i].name}`;
  for (let i = 1; i < axes.workers.length; i++) if (one[i - 1] && one[i] && other[i - 1] && other[i]) {
    const [before, after] = [i - 1, i].map((k) => one[k][1] - other[k][1]);
    if (before * after >= 0) continue;
    const at = before / (before - after), cx = one[i - 1][0] + at * gap, cy = one[i - 1][1] + at * (one[i][1] - one[i - 1][1]);
    out.push(svg("circle", {class: "cross", cx, cy, r: 9}, svg("title", {}, `The lines cross ${label(i)}`)), text("tick crosst", cx, cy > top + 34 ? cy - 15 : cy + 24, "cross", "middle"));
  }
  labels.sort((one, other) => one[0] - other[0]);
  spread(labels.map(([at]) => at), 13, base).forEach((at, i) => out.push(text(`tick t${labels[i][2]}`, right + 6, at + 4, labels[i][1])));
  axes.workers.forEach(({name}, i) => {
    const column = svg("rect", {class: "column", x: x(i) - gap / 2, y: top, width: gap, height: base + 24 - top}, svg("title", {}, `N = ${name}`));
    column.addEventListener("click", () => change({workers: i}));
    out.push(column);
  });
  return svg("svg", {viewBox: `0 0 ${width} ${base + 46}`, width, height: base + 46, role: "img"}, svg("title", {}, "Each topology against the number of workers; the numbers below have the chosen ones"), out);
}

function drawScale(found) {
  const of = lines === "time" ? (p) => p.time.median : (p) => p.tokens, show = lines === "time" ? seconds : rate;
  const every = axes.topology.map((each, topology) => ({name: each.name, all: alongN(topology), side: topology === chosen.topology ? "a" : topology === chosen.beside ? "b" : "o"}))
    .sort((one, other) => "oba".indexOf(one.side) - "oba".indexOf(other.side));
  fill("scale", every.some(({all}) => all.some(fits)) ? scaleDrawing(every, of, show) : nothing(found));
  const pair = sides().map((each) => ({...each, all: alongN(each.topology)}));
  fill("crossing", pair.length > 1 ? crossing(...pair) : "");
  fill("limits", pair.map(({name, all}) => {
    const told = stretches(all.map((p) => fits(p) ? p.limit : null));
    return told.length ? [el("b", {}, name), ` is limited by: ${told.map((each) => `${each[0]} ${from(each)}`).join(", ")}. `] : "";
  }));
  fill("scales", head("N", ...pair.flatMap(({name}) => [name, "limit"])), el("tbody", {}, axes.workers.map(({name}, i) => row(name, pair.flatMap(({all, side}) => {
    const p = all[i];
    return fits(p) ? [figure(`${side}.at.${name}`, of(p), show(of(p))), p.limit] : [p.large ? "does not fit" : "\u2013", ""];
  }), i === chosen.workers ? "chosen" : null))));
}

// ---------------------------------------------------------------- staleness, and all topologies
function drawStale(found) {
  const ready = timed(found).filter(({p}) => p.staleness);
  place("stale").hidden = !ready.length;
  fill("staleness", ready.map(({side, name, p: {staleness: {histogram}}}) => {
    const width = Math.max(280, place("staleness").clientWidth), base = 150, all = histogram.reduce((sum, n) => sum + n, 0) || 1, high = Math.max(...histogram) / all;
    const gap = (width - 46) / Math.max(histogram.length, 6), every = Math.ceil(30 / gap);
    return svg("svg", {viewBox: `0 0 ${width} ${base + 40}`, width, height: base + 40, role: "img"}, svg("title", {}, `Share of the gradients of ${name} by staleness`),
      text("tick", 38, 20, percent(high), "end"), text("tick", 38, base + 4, "0", "end"), svg("line", {class: "grid", x1: 44, x2: width, y1: base, y2: base}),
      histogram.map((n, i) => [n ? svg("rect", {class: side === "a" ? "pa" : "pb", x: 46 + i * gap + 0.5, width: Math.max(1, gap - 1.5), y: base - n / all / high * (base - 16), height: n / all / high * (base - 16)},
        svg("title", {}, `${i}: ${percent(n / all)}`)) : "", i % every ? "" : text("tick", 46 + (i + 0.5) * gap, base + 17, String(i), "middle")]),
      text("axis", width / 2, base + 35, `updates that a gradient of ${name} missed`, "middle"));
  }));
  fill("stale-words", ready.map(({side, name, p: {staleness}}) => [el("b", {}, name), ": on average ", figure(`${side}.staleness.mean`, staleness.mean, digits(staleness.mean)), ", at most ",
    figure(`${side}.staleness.max`, staleness.max, exactly(staleness.max)), ". "]));
}

function drawAll() {
  const found = axes.topology.map((each, topology) => ({name: each.name, topology, p: predicted(choose({topology}))}));
  fill("all", head("topology", "median step", "p95", "tokens/s", "limit", "worker's memory", "server's memory", "worker sends", "server sends"), el("tbody", {}, found.map(({name, topology, p}) => {
    const button = el("button", {type: "button", class: "name"}, name);
    button.addEventListener("click", () => change({topology}));
    const value = (of, number, show) => number === undefined ? "\u2013" : figure(`all.${name}.${of}`, number, show(number)), sent = (role) => (p.wire.find((w) => w.role === role) || {}).sent;
    if (p.none) return el("tr", {}, el("th", {scope: "row"}, button), el("td", {class: "fact", colspan: 8}, p.none));
    return row(button, [...(fits(p) ? [value("median", p.time.median, seconds), value("p95", p.time.p95, seconds), value("tokens", p.tokens, (v) => exactly(Math.round(v))), p.limit] :
      [el("span", {class: "no"}, "does not fit"), "\u2013", "\u2013", "\u2013"]), value("worker", p.worker.predicted_bytes, bytes), value("server", p.server && p.server.predicted_bytes, bytes),
      value("worker.sent", sent("worker"), bytes), value("server.sent", sent("server"), bytes)], topology === chosen.topology ? "chosen" : null);
  })));
}

// ---------------------------------------------------------------- choosing
function draw() {
  const found = sides();
  for (const axis of CHOICES) place(axis).selectedIndex = chosen[axis];
  place("servers").disabled = !isStar(chosen.topology) && !isStar(chosen.beside);
  fill("answer-a", answer(found[0]), versus(found));
  fill("answer-b", found[1] ? answer(found[1]) : "");
  place("answer-b").hidden = !found[1];
  drawTime(found);
  drawScale(found);
  drawMemory(found);
  drawBytes(found);
  drawStale(found);
  drawAll();
}

function change(changes) {
  Object.assign(chosen, changes);
  history.replaceState(null, "", "#" + CHOICES.map((axis) => `${axis}=${encodeURIComponent(axes[axis][chosen[axis]].name)}`).join("&"));
  draw();
}

// The address names a choice, so that it can be kept and sent: #topology=zero:3&workers=64
function fromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const axis of CHOICES) {
    const given = axes[axis].findIndex(({name}) => name === words.get(axis));
    chosen[axis] = given >= 0 ? given : chosen[axis] ?? grid.first[axis];
  }
  draw();
}

axes.beside = axes.topology;
document.documentElement.classList.add("live");
for (const axis of CHOICES) place(axis).addEventListener("change", (event) => change({[axis]: event.target.selectedIndex}));
for (const [name, what] of [["by-time", "time"], ["by-tokens", "tokens"]]) place(name).addEventListener("click", () => {
  lines = what;
  for (const other of ["by-time", "by-tokens"]) place(other).setAttribute("aria-pressed", String(other === name));
  draw();
});
addEventListener("hashchange", fromAddress);
addEventListener("resize", draw);
fromAddress();
