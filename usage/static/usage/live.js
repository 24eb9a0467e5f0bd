// Keeps the table of a Live page up to date: the feed says once a second which rows are new, different or
// gone.
// The panel may name a project, a key, a model or an end user; other rows are left out. Cells that a page
// does not have are skipped.

const panel = document.getElementById("live-panel");
const body = document.getElementById("live-rows");
const template = document.getElementById("live-row");
const state = document.getElementById("live-state");
const rows = new Map([...body.rows].map((row) => [row.dataset.id, row]));

// The name of the wanted end user and its digest: rows have the one or the other.
const endUserNames = JSON.parse(panel.dataset.endUserNames);

const numbers = new WeakMap(); // What the feed said last of each row.

// The feed speaks about every second: after this long without a word the connection is dead.
const QUIET_MS = 10000;
const MAX_WAIT_MS = 30000;
const ARMED_MS = 4000; // How long a stop button asks back.
const RELOAD = 4001; // The feed closes so when what this person may see is another now, or nothing.

let clockAheadMs = 0; // Of the server's clock, against ours.
let waitMs = 0;
let quiet;

function connect() {
  const url = new URL(panel.dataset.feed, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const feed = new WebSocket(url);
  let isFirst = true;
  const listen = () => {
    clearTimeout(quiet);
    quiet = setTimeout(() => feed.close(), QUIET_MS);
  };
  listen();
  feed.onmessage = (message) => {
    listen();
    waitMs = 0;
    const change = JSON.parse(message.data);
    // The first message has all that runs; other rows are gone.
    if (isFirst) keepOnly(new Set(change.rows.map((row) => row.id)));
    isFirst = false;
    apply(change);
    say("live", "good");
  };
  feed.onclose = ({ code }) => {
    clearTimeout(quiet);
    if (code === RELOAD) {
      location.reload();
      return;
    }
    waitMs = Math.min(Math.max(2 * waitMs, 1000), MAX_WAIT_MS);
    say(`not connected, trying again in ${Math.round(waitMs / 1000)} s`, "warn");
    setTimeout(connect, waitMs * (0.75 + Math.random() / 2));
  };
}

function say(text, mood) {
  if (state.textContent === text) return; // A screen reader reads every change.
  state.textContent = text;
  state.className = `badge ${mood}`;
}

function keepOnly(ids) {
  for (const [id, row] of rows) if (!ids.has(id)) remove(id, row);
}

// The focus of a row that goes moves to the next one's button, or else to where the table was.
function remove(id, row) {
  const hadFocus = row.contains(document.activeElement);
  const next = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  rows.delete(id);
  if (hadFocus) {
    const inRow = next?.querySelector("button") ?? next?.querySelector("a");
    (inRow ?? document.getElementById("main") ?? document.body).focus();
  }
}

function isWanted({ project_id, key_id, model, end_user }) {
  const { project, key, model: wanted } = panel.dataset;
  return (!project || project === String(project_id))
    && (!key || key === String(key_id))
    && (!wanted || wanted === model)
    && (!endUserNames.length || endUserNames.includes(end_user));
}

function apply({ now_ms, rows: changed, gone }) {
  clockAheadMs = now_ms - Date.now();
  for (const id of gone) if (rows.has(id)) remove(id, rows.get(id));
  const fresh = document.createDocumentFragment();
  for (const data of changed) {
    const row = rows.get(data.id);
    if (isWanted(data)) {
      if (!row) fresh.append(make(data));
      show(rows.get(data.id), data);
    } else if (row) remove(data.id, row); // A model that the page is not about answers it now.
  }
  body.append(fresh);
  document.getElementById("live-count").textContent = rows.size.toLocaleString("en");
  document.getElementById("live-empty").hidden = rows.size > 0;
  panel.hidden = rows.size === 0;
  addUp();
}

// The sums above the table, on pages that have them.
function addUp() {
  const tokens = document.getElementById("live-tokens");
  if (!tokens) return;
  const sum = (name) => [...rows.values()].reduce((all, row) => all + (numbers.get(row)?.[name] ?? 0), 0);
  write(tokens, sum("tokens").toLocaleString("en"));
  const least = rows.size ? "≥ " : "";
  write(document.getElementById("live-cost"), least + dollars(sum("cost_nanodollars")));
}

function dollars(nanodollars) {
  const amount = nanodollars / 1e9;
  return amount === 0 ? "$0.00" : `$${amount.toFixed(amount >= 1 ? 2 : 6)}`;
}

function make({ id, project_id, key_id, began_ms, end_user = "" }) {
  const row = template.content.firstElementChild.cloneNode(true);
  row.dataset.id = id;
  row.dataset.began = began_ms;
  const link = row.querySelector("[data-link]");
  link.href = link.getAttribute("href").replace("ID", id);
  const form = row.querySelector("form");
  if (form) form.action = form.getAttribute("action").replace("ID", id);
  const ofKey = row.querySelector("[data-key-link]");
  if (ofKey) ofKey.href = ofKey.getAttribute("href").replace("KEY", key_id);
  const ofEndUser = row.querySelector("[data-end-user-link]");
  const href = ofEndUser.getAttribute("href").replace("PROJECT", project_id);
  ofEndUser.href = href.replace("NAME", encodeURIComponent(end_user));
  ofEndUser.parentElement.hidden = !end_user;
  row.querySelector("[data-is=short]").textContent = `…${id.slice(-8)}`;
  rows.set(id, row);
  return row;
}

function show(row, data) {
  for (const name of ["state", "model", "who", "project", "key", "end_user", "tokens", "rate", "held"]) {
    const cell = row.querySelector(`[data-is=${name}]`);
    if (cell) (name === "model" ? writeName : write)(cell, String(data[name] ?? ""));
  }
  numbers.set(row, data);
  const cost = row.querySelector("[data-is=cost]");
  if (cost) write(cost, `≥\u00a0${dollars(data.cost_nanodollars)}`);
  row.querySelector("[data-is=state]").classList.toggle("warn", data.state === "waiting");
  age(row);
}

function write(cell, text) {
  if (cell.textContent === text) return;
  cell.textContent = text;
  if (cell.hasAttribute("title")) cell.title = text;
}

// With places for line breaks, as the page has them: no browser breaks a line after a slash by itself.
function writeName(cell, text) {
  if (cell.textContent === text) return;
  const parts = text.split(/(?<=[/-])/);
  cell.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
}

function age(row) {
  const seconds = Math.max(0, Math.round((Date.now() + clockAheadMs - row.dataset.began) / 1000));
  const minutes = Math.floor(seconds / 60);
  // In whole minutes from the second one on: a thousand cells that change every second keep a browser busy.
  const longer = minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`;
  write(row.querySelector("[data-is=age]"), minutes < 2 ? `${seconds} s` : longer);
}

// A stop can't be undone: the button asks back once.
body.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  if (button.ariaDisabled) return;
  if (!button.dataset.armed) {
    button.dataset.armed = "yes";
    button.textContent = "Really stop?";
    setTimeout(() => disarm(button), ARMED_MS);
    return;
  }
  // A button that is really disabled would lose the focus.
  button.ariaDisabled = "true";
  button.textContent = "Stopping";
  const answer = await fetch(form.action, {
    method: "POST", body: new FormData(form), headers: { Accept: "application/json" },
  }).catch(() => null);
  if (answer?.ok && !answer.redirected) return; // It leads to the sign-in if the session has ended.
  button.ariaDisabled = null;
  button.textContent = "Not stopped";
});

function disarm(button) {
  delete button.dataset.armed;
  if (!button.ariaDisabled) button.textContent = "Stop";
}

setInterval(() => rows.forEach(age), 1000);
connect();
