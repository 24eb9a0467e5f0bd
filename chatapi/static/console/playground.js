// The playground's page: reads the form, sends its request to one model or two, and shows the same request as
// code.

import { AnswerColumn } from "./answer_column.js";
import { PROTOCOLS } from "./protocols.js";

const CODE_WAIT_MS = 300; // From the last change of the form to the request for its code.

const find = (id) => document.getElementById(id);
const form = find("playground");
const secrets = new Map(); // By project and kind, as promises.
let stopping = null; // The AbortController of the running request.
let codeTimer;
let codeAsked; // The AbortController of the running request for code.

// ---- the request that the form describes

class InvalidField extends Error {
  constructor(field, why) {
    super(`${field.dataset.name ?? field.id}: ${why}`);
    this.field = field;
  }
}

const copyOf = (template) => find(template).content.firstElementChild.cloneNode(true);

// Adds a message; returns its field to fill in: the first call's result, or the text if there are no calls.
function addMessage(role, text, calls = []) {
  const message = copyOf("message");
  const roles = message.querySelector("select");
  roles.value = role;
  roles.disabled = calls.length > 0;
  message.querySelector("textarea").value = text;
  for (const call of calls) {
    const field = copyOf("result");
    field.dataset.call = JSON.stringify(call);
    field.querySelector("label span").textContent = call.name;
    field.querySelector("code").textContent = call.arguments;
    message.append(field);
  }
  find("messages").append(message);
  return message.querySelector(calls.length ? "[data-call] textarea" : "textarea");
}

function messages() {
  return [...find("messages").children].map((message) => ({
    role: message.querySelector("select").value,
    content: message.querySelector("textarea").value,
    calls: [...message.querySelectorAll("[data-call]")].map((field) => (
      { ...JSON.parse(field.dataset.call), result: field.querySelector("textarea").value }
    )),
  }));
}

function json(field) {
  if (!field.value.trim()) return undefined;
  try {
    return JSON.parse(field.value);
  } catch (error) {
    throw new InvalidField(field, `this is not JSON. ${error.message}`);
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Returns the tools, which may be written as in any of the protocols; `parameters` is the arguments' schema.
function tools(field) {
  const all = json(field);
  if (all === undefined) return undefined;
  if (!Array.isArray(all))
    throw new InvalidField(
      field, "write an array of functions, such as [{\"name\": …, \"parameters\": {…}}].");
  return all.map((each, index) => {
    const { name, description, parameters, input_schema: schema = parameters } = each?.function ?? each ?? {};
    if (typeof name !== "string" || !name)
      throw new InvalidField(field, `the function at [${index}] needs a "name".`);
    if (schema !== undefined && !isObject(schema))
      throw new InvalidField(field, `"parameters" of "${name}" must be a JSON schema, which is an object.`);
    return { name, ...(description && { description }), ...(schema && { parameters: schema }) };
  });
}

function schema(field) {
  const value = json(field);
  if (value !== undefined && !isObject(value)) throw new InvalidField(field, "a JSON schema is an object.");
  return value;
}

function parameters(protocol) {
  const all = {};
  for (const [id, name] of Object.entries(protocol.parameters)) {
    const field = find(id);
    if (!field.validity.valid) throw new InvalidField(field, field.validationMessage);
    if (field.value === "") continue;
    all[name] = id === "stop_sequences" ? field.value.split("\n").filter(Boolean) : Number(field.value);
  }
  return all;
}

// Returns the parameters that have no field; `sent` is the body by the form's fields.
function others(field, sent) {
  const all = json(field) ?? {};
  if (!isObject(all)) {
    throw new InvalidField(field, "write an object, such as {\"tool_choice\": \"required\"}.");
  }
  const twice = Object.keys(all).find((name) => Object.hasOwn(sent, name));
  if (twice) throw new InvalidField(field, `the form sends "${twice}" already.`);
  return all;
}

// Returns the body of the request; throws `InvalidField`.
function bodyFor(protocol, model) {
  const has = (name) => protocol.takes.includes(name);
  const body = protocol.body({
    model,
    system: has("system") ? find("system").value : "",
    messages: messages(),
    parameters: parameters(protocol),
    tools: has("tools") ? tools(find("tools")) : undefined,
    schema: has("schema") ? schema(find("schema")) : undefined,
  });
  return { ...body, ...others(find("more"), body) };
}

function showInvalid(error) {
  form.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
  find("invalid").hidden = !error;
  find("invalid").textContent = error?.message ?? "";
  error?.field.setAttribute("aria-invalid", "true");
}

// Hides the fields that the protocol does not have, and names the others as the protocol does.
function showFields() {
  const protocol = PROTOCOLS[find("protocol").value];
  find("dialect").closest(".field").hidden = !protocol.hasDialects;
  for (const field of form.querySelectorAll("[data-parameter]")) {
    const name = protocol.parameters[field.id];
    field.closest(".field").hidden = !name;
    if (!name) continue;
    field.dataset.name = name;
    form.querySelector(`label[for=${field.id}] span`).textContent = name;
  }
  for (const id of ["system", "tools", "schema"])
    find(id).closest("[data-optional]").hidden = !protocol.takes.includes(id);
  for (const field of find("messages").querySelectorAll("[data-call]")) {
    field.hidden = !protocol.takes.includes("tools");
  }
}

// ---- the same request as code

async function showCode() {
  let body;
  try {
    body = bodyFor(PROTOCOLS[find("protocol").value], find("model").value);
    showInvalid(null);
  } catch (error) {
    if (!(error instanceof InvalidField)) throw error;
    showInvalid(error);
    return;
  }
  codeAsked?.abort();
  codeAsked = new AbortController();
  const sent = new FormData();
  sent.set("csrfmiddlewaretoken", form.querySelector("[name=csrfmiddlewaretoken]").value);
  sent.set("protocol", find("protocol").value);
  sent.set("dialect", find("dialect").value);
  sent.set("body", JSON.stringify(body));
  const answer = await fetch(form.dataset.codeUrl, {
    method: "POST", body: sent, signal: codeAsked.signal,
  }).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  for (const [client, text] of Object.entries(await answer.json())) find(client).textContent = text;
}

function showCodeSoon() {
  clearTimeout(codeTimer);
  codeTimer = setTimeout(showCode, CODE_WAIT_MS);
}

// ---- the key

async function newSecret(project, isTest) {
  const sent = new FormData();
  sent.set("project", project);
  if (isTest) sent.set("test_key", "on");
  sent.set("csrfmiddlewaretoken", form.querySelector("[name=csrfmiddlewaretoken]").value);
  const answer = await fetch(form.dataset.keyUrl, { method: "POST", body: sent });
  if (!answer.ok || answer.redirected)
    throw new Error("No key for this project: reload the page and sign in again.");
  return (await answer.json()).key;
}

// Returns a promise of the secret. Both columns share it, because a new secret ends the one before.
function secretOf(project, isTest) {
  const kind = `${project} ${isTest}`;
  if (!secrets.has(kind)) {
    const secret = newSecret(project, isTest);
    secrets.set(kind, secret);
    secret.catch(() => secrets.delete(kind));
  }
  return secrets.get(kind);
}

async function ask(path, options = {}) {
  const project = find("project").value;
  const isTest = find("test_key").checked;
  const send = async () => fetch(form.dataset.root + path.slice(1), {
    ...options,
    headers: { ...options.headers, Authorization: `Bearer ${await secretOf(project, isTest)}` },
  });
  const used = secretOf(project, isTest);
  const answer = await send();
  if (answer.status !== 401) return answer;
  // The secret has expired, or another tab has a newer one. The other column may have a new one already.
  if (secretOf(project, isTest) === used) secrets.delete(`${project} ${isTest}`);
  return send();
}

// ---- the page

const columns = [];

function showColumns() {
  const wanted = find("second").value ? 2 : 1;
  while (columns.length < wanted) {
    const root = copyOf("column");
    const number = columns.length + 1;
    for (const part of root.querySelectorAll("[aria-label]"))
      part.setAttribute("aria-label", `${part.getAttribute("aria-label")} ${number}`);
    find("columns").append(root);
    columns.push(new AnswerColumn(root, ask, form.dataset.receiptUrl));
  }
  while (columns.length > wanted) columns.pop().root.remove();
  find("columns").classList.toggle("two", wanted === 2);
}

async function send() {
  const protocol = PROTOCOLS[find("protocol").value];
  const chosen = [find("model"), find("second")].slice(0, columns.length)
    .map((select) => select.selectedOptions[0]);
  const bodies = chosen.map((option) => bodyFor(protocol, option.value));
  const path = protocol.path(find("dialect").value);
  const { signal } = stopping;
  const priceOf = (option) => (find("test_key").checked ? 0 : Number(option.dataset.price));
  const run = (column, index) =>
    column.run(protocol, path, bodies[index], { price: priceOf(chosen[index]), signal });
  await Promise.all(columns.map(run));
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (stopping) return;
  stopping = new AbortController();
  // The receipt is asked for with the key of the project that was chosen.
  for (const id of ["send", "second", "project", "test_key"]) find(id).disabled = true;
  find("stop").disabled = false;
  find("stop").focus();
  let failed = null;
  try {
    showInvalid(null);
    await send();
  } catch (error) {
    failed = error;
  } finally {
    const hadFocus = document.activeElement === find("stop") || document.activeElement === document.body;
    stopping = null;
    for (const id of ["send", "second", "project", "test_key"]) find(id).disabled = false;
    find("stop").disabled = true;
    if (hadFocus) find("send").focus();
  }
  if (failed instanceof InvalidField) {
    showInvalid(failed);
    const details = failed.field.closest("details");
    if (details) details.open = true;
    failed.field.focus();
  } else if (failed && failed.name !== "AbortError") {
    columns[0].fail(failed.message);
  }
});
form?.addEventListener("click", (event) => {
  const remove = event.target.closest("[data-removes]");
  if (event.target.id === "stop") stopping?.abort();
  if (event.target.id === "add") addMessage("user", "").focus();
  if (event.target.dataset.part === "continue") {
    const { text, calls } = columns.find((each) => each.root.contains(event.target)).message;
    const result = addMessage("assistant", text, calls);
    event.target.hidden = true;
    (calls.length ? result : addMessage("user", "")).focus();
    showFields();
  }
  if (remove && find("messages").children.length > 1) {
    remove.closest(".message").remove();
    find("add").focus();
  }
  showCodeSoon();
});
form?.addEventListener("input", (event) => {
  if (event.target.id === "protocol") showFields();
  if (event.target.id === "second") showColumns();
  showCodeSoon();
});
form?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

if (form) {
  addMessage("user", "Say hello.");
  showFields();
  showColumns();
  showCode();
  // Disabled until here, because the browser itself would send the form, and load the page again.
  find("send").disabled = false;
}
