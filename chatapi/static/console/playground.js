// The playground: sends the request that the form describes, and shows its stream, its frames, its cost and its code.

import { announce } from "./console.js";
import { curl, node, python } from "./request_code.js";

const SETTLED_TRIES = 20; // Looks at the receipt after the stream's end; a stopped request takes a moment to settle.
const SETTLED_WAIT_MS = 300;
const MAX_FRAME_CHARS = 400000; // Of the frames that are shown, so that a long answer does not slow the page down.

const find = (id) => document.getElementById(id);
const form = find("playground");
const secrets = new Map(); // By project.
let stopping = null; // Of the request that runs: its AbortController.

// ---- the request that the form describes

function addMessage(role, text) {
  const message = find("message").content.firstElementChild.cloneNode(true);
  message.querySelector("select").value = role;
  message.querySelector("textarea").value = text;
  find("messages").append(message);
  return message.querySelector("textarea");
}

function body() {
  const messages = [...find("messages").children].map((each) => ({
    role: each.querySelector("select").value,
    content: each.querySelector("textarea").value,
  }));
  const system = find("system").value;
  const parameters = {};
  for (const field of form.querySelectorAll("[data-parameter]")) {
    if (field.value !== "") parameters[field.id] = Number(field.value);
  }
  return {
    model: find("model").value,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    ...parameters,
    stream: true,
    stream_options: { include_usage: true },
  };
}

function showCode() {
  const { origin } = form.dataset;
  const asked = body();
  find("curl").textContent = curl(origin, asked);
  find("python").textContent = python(origin, asked);
  find("node").textContent = node(origin, asked);
}

// ---- the key

async function secretOf(project, signal) {
  if (!secrets.has(project)) {
    const sent = new FormData();
    sent.set("project", project);
    sent.set("csrfmiddlewaretoken", form.querySelector("[name=csrfmiddlewaretoken]").value);
    const answer = await fetch(form.dataset.keyUrl, { method: "POST", body: sent, signal });
    if (!answer.ok || answer.redirected) throw new Error("No key for this project: reload the page and sign in again.");
    secrets.set(project, (await answer.json()).key);
  }
  return secrets.get(project);
}

async function ask(path, project, options = {}) {
  const send = async () => fetch(form.dataset.api + path, {
    ...options,
    headers: { ...options.headers, Authorization: `Bearer ${await secretOf(project, options.signal)}` },
  });
  const answer = await send();
  if (answer.status !== 401) return answer;
  secrets.delete(project); // It has expired, or another tab has a newer one.
  return send();
}

// ---- the stream

async function* frames(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const parts = (rest + read.value).split("\n\n");
    rest = parts.pop();
    yield parts;
  }
}

function write(parts, shown) {
  shown.count += parts.length;
  const room = MAX_FRAME_CHARS - find("frames").textContent.length;
  if (room > 0) find("frames").append(`${parts.join("\n\n")}\n\n`.slice(0, room));
  find("frames-count").textContent = `${shown.count} frames`;
  for (const part of parts) {
    if (!part.startsWith("data: {")) continue;
    const chunk = JSON.parse(part.slice("data: ".length));
    const delta = chunk.choices?.[0]?.delta;
    if (delta?.content) find("answer").append(delta.content);
    if (delta?.tool_calls) find("answer").append(JSON.stringify(delta.tool_calls));
    if (chunk.error) fail(chunk.error.message);
    if (chunk.usage) find("usage").textContent = JSON.stringify(chunk, null, 2);
  }
}

function clear() {
  for (const id of ["answer", "frames", "frames-count", "usage", "amount", "ended"]) find(id).textContent = "";
  for (const id of ["failure", "cost", "continue"]) find(id).hidden = true;
}

function fail(text) {
  find("failure").textContent = text;
  find("failure").hidden = false;
}

async function run() {
  const project = find("project").value;
  let id;
  clear();
  try {
    const answer = await ask("chat/completions", project, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body()),
      signal: stopping.signal,
    });
    id = answer.headers.get("x-generation-id");
    if (!answer.ok) {
      fail((await answer.json()).error.message);
      return;
    }
    const shown = { count: 0 };
    for await (const parts of frames(answer.body)) write(parts, shown);
    find("continue").hidden = !find("answer").textContent;
    announce("The answer is complete.");
  } catch (error) {
    if (error.name !== "AbortError") fail(error.message);
    else announce("Stopped.");
  }
  if (id) await showReceipt(id, project);
}

async function showReceipt(id, project) {
  find("cost").hidden = false;
  find("receipt").href = form.dataset.receiptUrl.replace("ID", id);
  for (let tries = 0; tries < SETTLED_TRIES; tries += 1) {
    const answer = await ask(`generations/${id}`, project).catch(() => null);
    const receipt = answer?.ok ? await answer.json() : {};
    if (receipt.state === "settled") {
      const { prompt_tokens: input, completion_tokens: output } = receipt.usage;
      find("amount").textContent = `$${receipt.net_usd}`;
      find("ended").textContent = `${receipt.outcome.replaceAll("_", " ")}: ${input} tokens in, ${output} out.`;
      return;
    }
    await new Promise((resolve) => { setTimeout(resolve, SETTLED_WAIT_MS); });
  }
  find("ended").textContent = "It is not settled yet; the receipt will have its cost.";
}

// ---- the page

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (stopping) return;
  stopping = new AbortController();
  find("send").disabled = true;
  find("stop").disabled = false;
  find("stop").focus();
  try {
    await run();
  } finally {
    const hadFocus = document.activeElement === find("stop") || document.activeElement === document.body;
    stopping = null;
    find("send").disabled = false;
    find("stop").disabled = true;
    if (hadFocus) find("send").focus();
  }
});
form?.addEventListener("click", (event) => {
  const remove = event.target.closest("[data-removes]");
  if (event.target.id === "stop") stopping?.abort();
  if (event.target.id === "add") addMessage("user", "").focus();
  if (event.target.id === "continue") {
    addMessage("assistant", find("answer").textContent);
    event.target.hidden = true;
    addMessage("user", "").focus();
  }
  if (remove && find("messages").children.length > 1) {
    remove.closest(".message").remove();
    find("add").focus();
  }
  showCode();
});
form?.addEventListener("input", showCode);
form?.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });

if (form) {
  addMessage("user", "Say hello.");
  showCode();
}
