// Shows /page.json, every two seconds. All that the service says becomes text nodes, never markup.
"use strict";

const EVERY_MS = 2000, TIMEOUT_MS = 5000, MINUTES = 10;
const LOOKS = { running: "good", paused: "warn", draining: "warn", starting: "warn", waiting: "bad", red: "bad" };
const byId = (id) => document.getElementById(id);
let last = null, lastAt = 0;

function make(tag, text, look) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (look) element.className = look;
  return element;
}

const number = (value) => value === null || value === undefined ? "unknown" : Math.round(value).toLocaleString("en");
const mib = (bytes) => `${Math.round(bytes / 1048576).toLocaleString("en")} MiB`;

function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 120) return `${minutes} min`;
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}

function clock(at) {
  const time = make("time", new Date(at * 1000).toLocaleTimeString("en-GB"));
  time.dateTime = new Date(at * 1000).toISOString();
  return time;
}

function plot(points, now) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const from = now - MINUTES * 60, known = points.filter(([at, value]) => at >= from && value !== null);
  const most = known.length ? Math.max(...known.map(([, value]) => value)) : null, top = most || 1;
  const at = ([time, value]) => `${((time - from) / (MINUTES * 60) * 100).toFixed(2)},${(39 - value / top * 37).toFixed(2)}`;
  if (known.length > 1) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [first, end] = [known[0], known[known.length - 1]].map((point) => at([point[0], 0]));
    path.setAttribute("d", `M${first} L${known.map(at).join(" ")} L${end}`);
    svg.append(path);
  }
  return [svg, most];
}

function tile(title, value, points, now, unit) {
  const [svg, most] = plot(points, now);
  const box = make("div", null, "tile");
  box.append(make("span", title, "quiet"), make("b", value), svg);
  box.append(make("span", `last ${MINUTES} minutes: ${most === null ? "unknown" : `at most ${unit(most)}`}`, "quiet"));
  return box;
}

function table(target, columns, rows, now) {
  const head = make("thead"), body = make("tbody"), titles = make("tr");
  for (const [title, , text] of columns) {
    const cell = make("th", title, text ? "text" : "");
    cell.scope = "col";
    titles.append(cell);
  }
  head.append(titles);
  for (const row of rows) {
    const line = make("tr");
    for (const [, read, text] of columns) {
      const cell = read(row, now);
      line.append(cell instanceof Node ? cell : make("td", cell, text ? "text" : ""));
    }
    body.append(line);
  }
  target.replaceChildren(head, body);
}

function partitions(row) {
  const topics = new Map();
  for (const [topic, number] of row.partitions) topics.set(topic, [...(topics.get(topic) || []), number]);
  return [...topics].map(([topic, numbers]) => `${topic} ${ranges(numbers.sort((a, b) => a - b))}`).join(", ") || "none";
}

function ranges(numbers) {
  const found = [];
  for (const each of numbers) {
    const run = found[found.length - 1];
    if (run && run[1] === each - 1) run[1] = each; else found.push([each, each]);
  }
  return found.map(([a, b]) => a === b ? a : `${a}–${b}`).join(",");
}

function phase(row) {
  const cell = make("td", null, "text");
  const look = row.reasons.length ? "bad" : row.phase === "running" ? "good" : "warn";
  const problems = row.reasons.length ? `, ${row.reasons.length === 1 ? "a problem" : `${row.reasons.length} problems`}` : "";
  cell.append(make("span", row.phase + problems, look));
  return cell;
}

function timed(at) {
  const cell = make("td", null, "text");
  cell.append(clock(at));
  return cell;
}

const WORKERS = [
  ["worker", (row) => row.slot, true],
  ["phase", phase, true],
  ["rate", (row) => `${number(row.rate)}/s`],
  ["in hand", (row) => number(row.in_hand)],
  ["oldest run", (row) => row.oldest_s ? span(row.oldest_s) : "–"],
  ["heartbeat", (row) => row.heartbeat_age_s === null ? "–" : `${span(row.heartbeat_age_s)} ago`],
  ["memory", (row) => row.rss_bytes ? mib(row.rss_bytes) : "–"],
  ["restarts", (row) => number(row.restarts)],
  ["pid", (row) => row.pid || "–"],
  ["partitions", partitions, true],
];
const LETTERS = [
  ["time", (row) => timed(row.at_ms / 1000), true],
  ["record", (row) => row.record, true],
  ["reason", (row) => row.reason, true],
  ["error", (row) => row.error, true],
];
const TOPICS = [
  ["topic", (row) => row.topic, true],
  ["partitions", (row) => number(row.partitions)],
  ["behind", (row) => number(row.behind)],
];
const DELAYS = [
  ["delay", (row) => row.delay, true],
  ["waiting", (row) => number(row.waiting)],
  ["next due", (row, now) => row.next_due_ms === null ? "–" : due(row.next_due_ms / 1000 - now)],
];
const TABLES = [
  ["table", (row) => row.name, true],
  ["state", (row) => row.state, true],
  ["last batch", (row) => row.batch === null ? "–" : number(row.batch)],
  ["rows", (row) => number(row.rows)],
  ["behind", (row) => number(row.behind)],
  ["did not fit", (row) => number(row.rescued)],
  ["set aside", (row) => number(row.aside)],
  ["", (row) => row.reason, true],
];

const TOTALS = {
  consumed: "records taken", done: "records done", failed: "failed runs of handlers", retried: "retries",
  dead: "dead letters", duplicates: "duplicates skipped", dropped: "tombstones skipped",
  unguarded: "runs without duplicate protection", remembered: "redelivered, and known as done",
  maps_ignored: "offset maps ignored", published: "outputs published", commits: "commits", rebalances: "rebalances",
};

const due = (seconds) => seconds > 0 ? `in ${span(seconds)}` : "now";

function show(data) {
  const status = data.status, now = data.now;
  byId("name").textContent = status.name;
  byId("instance").textContent = `on ${status.instance}`;
  byId("about").textContent = `version ${status.version}, pid ${status.pid}, up ${span(status.uptime_s)}`;
  const state = byId("state");
  if (state.textContent !== status.state) state.textContent = status.state;
  state.className = `pill ${LOOKS[status.state] || "warn"}`;
  document.title = `${status.state}: ${status.name}`;
  problems(status.reasons, data.since, now);
  pauses(status.paused, now);
  const of = (index) => data.samples.map((sample) => [sample[0], sample[index]]);
  const total = (field) => status.workers.reduce((sum, worker) => sum + worker[field], 0);
  byId("tiles").replaceChildren(
    tile("Records a second", number(total("rate")), of(1), now, number),
    tile("Lag, in records", number(status.lag.records), of(2), now, number),
    tile("In hand", number(total("in_hand")), of(3), now, number),
    tile("Oldest unfinished record", span(status.lag.age_s), of(4), now, span),
  );
  table(byId("worker-rows"), WORKERS, status.workers);
  byId("topics").hidden = !status.lag.topics.length;
  table(byId("topic-rows"), TOPICS, status.lag.topics);
  byId("delays").hidden = !status.delays.length;
  table(byId("delay-rows"), DELAYS, status.delays, now);
  byId("tables").hidden = status.spark.state === "off";
  byId("spark").textContent = [`Spark job ${status.spark.state}`, status.spark.reason].filter(Boolean).join(": ");
  table(byId("table-rows"), TABLES, status.spark.tables);
  byId("letters").hidden = !status.last_dead_letters.length;
  table(byId("letter-rows"), LETTERS, status.last_dead_letters);
  list(byId("counters"), Object.entries(status.counters).map(([name, count]) => [TOTALS[name] || name, number(count)]));
  list(byId("dead"), Object.entries(status.dead_letters).filter(([, count]) => count)
    .map(([reason, count]) => [reason, number(count)]));
  list(byId("runs"), runs(status.runs));
  byId("events").replaceChildren(...data.events.toReversed().map(([at, text]) => {
    const item = make("li");
    item.append(clock(at), text);
    return item;
  }));
  if (!data.events.length) byId("events").append(make("li", "nothing since the console started", "quiet"));
}

function list(target, rows) {
  target.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  if (!rows.length) target.append(make("dt", "none"));
}

// The bound that so large a share of the runs kept.
function kept(runs, share) {
  const all = runs.counts.reduce((sum, count) => sum + count, 0);
  let sum = 0;
  const index = runs.counts.findIndex((count) => (sum += count) >= share * all);
  const bound = runs.bounds_s[index];
  return bound === undefined ? `over ${duration(runs.bounds_s.at(-1))}` : `at most ${duration(bound)}`;
}

function duration(seconds) {
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(2))} ms` : span(seconds);
}

function runs(given) {
  const all = given.counts.reduce((sum, count) => sum + count, 0);
  if (!all) return [];
  return [["runs", number(all)], ["on average", duration(given.sum_s / all)],
    ["half of them", kept(given, .5)], ["99 of 100", kept(given, .99)]];
}

function problems(reasons, since, now) {
  byId("problems").hidden = !reasons.length;
  byId("problems").querySelector("ul").replaceChildren(...reasons.map((reason, index) => {
    const item = make("li", reason);
    if (since[index] !== null) item.append(make("span", ` for ${span(Math.max(0, now - since[index]))}`, "quiet"));
    return item;
  }));
}

function pauses(rows, now) {
  byId("paused").hidden = !rows.length;
  byId("paused").querySelector("ul").replaceChildren(...rows.map((row) => {
    const item = make("li", row.topic === "*" ? "all topics" : row.topic);
    const end = row.until_ms === null ? "until kworker resume" : `ends ${due(row.until_ms / 1000 - now)}`;
    item.append(make("span", ` by ${row.by} for ${span(Math.max(0, now - row.since_ms / 1000))}, ${end}`, "quiet"));
    return item;
  }));
}

function gone(why) {
  const banner = byId("gone");
  banner.hidden = !why;
  if (banner.textContent !== why) banner.textContent = why;
  document.body.classList.toggle("stale", Boolean(why));
}

async function turn() {
  try {
    const answer = await fetch("page.json", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`the console answers ${answer.status}`);
    const data = await answer.json();
    if (data.status) {
      show(data);
      last = data;
      lastAt = Date.now() - data.age_s * 1000;
    }
    gone(data.problem && `${data.problem}. What stands here is ${span(data.age_s)} old.`);
  } catch (error) {
    const age = last ? ` What stands here is ${span((Date.now() - lastAt) / 1000)} old.` : "";
    gone(`The console does not answer (${error.message}).${age}`);
  }
  byId("fresh").textContent = last ? `updated ${span(Math.max(0, (Date.now() - lastAt) / 1000))} ago` : "";
  setTimeout(turn, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

turn();
