// Follows the checklist of Start: the first request while it streams, and steps that are done elsewhere.

import { announce } from "./console.js";

const LOOK_MS = 4000; // Between two reads of the steps that are done.
const MAX_WAIT_MS = 30000;
const RELOAD = 4001; // The code with which the feed closes when the person's rights have changed or ended.

const steps = document.getElementById("steps");
const running = new Set();
let feed;
let waitMs = 0;
// Whether an earlier `look` found the first request: the feed may show it a second later.
let wasFound = false;

function connect() {
  const url = new URL(steps.dataset.feed, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  feed = new WebSocket(url);
  feed.onmessage = (message) => {
    waitMs = 0;
    const change = JSON.parse(message.data);
    // With a limit to projects, the steps are those of one project.
    const { project } = steps.dataset;
    const rows = change.rows.filter((row) => !project || project === String(row.project_id));
    for (const row of rows) running.add(row.id);
    const gone = change.gone.filter((id) => running.delete(id));
    if (rows.length) show(rows[0]);
    wasFound ||= gone.length > 0;
    if (gone.length) look();
  };
  feed.onclose = ({ code }) => {
    if (code === RELOAD) {
      location.reload();
      return;
    }
    waitMs = Math.min(Math.max(2 * waitMs, 1000), MAX_WAIT_MS);
    if (document.getElementById("streaming")) setTimeout(connect, waitMs);
  };
}

function show({ model, state, tokens }) {
  const status = document.getElementById("streaming");
  if (!status) return;
  status.classList.add("is-live");
  const text = state === "waiting"
    ? `A request to ${model} is waiting for a worker.`
    : `A request to ${model} is streaming: ${tokens} tokens.`;
  status.querySelector("[data-text]").textContent = text;
}

// Replaces the steps that are done by now; that of the first request not before the request has ended.
async function look() {
  const answer = await fetch(location.href).catch(() => null);
  // A redirect leads to the sign-in page: the session has ended.
  if (answer?.redirected) location.reload();
  if (!answer?.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const fresh of page.querySelectorAll("#steps > li[data-is-done]")) {
    const shown = document.getElementById(fresh.id);
    if (!shown || "isDone" in shown.dataset) continue;
    if (fresh.id === "step-request" && (running.size || !wasFound)) {
      wasFound = true;
      continue;
    }
    announce(fresh.querySelector("h2").textContent.trim());
    shown.replaceWith(document.adoptNode(fresh));
  }
  const refused = document.getElementById("refused");
  const refusedNow = page.getElementById("refused");
  if (refused && refusedNow && refused.innerHTML !== refusedNow.innerHTML)
    refused.replaceChildren(...refusedNow.childNodes);
  if (!document.getElementById("streaming")) feed?.close();
  document.getElementById("done-count").textContent = page.getElementById("done-count").textContent;
  if (!("isOpen" in page.getElementById("steps").dataset)) clearInterval(looking);
}

if (steps.dataset.feed) connect();
const looking = setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);
