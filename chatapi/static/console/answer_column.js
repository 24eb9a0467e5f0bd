// One answer of the playground: its reasoning and text, its frames, its usage and its cost.

import { announce } from "./console.js";
import { eventOf } from "./protocols.js";

// How often the receipt is read after the stream's end: a stopped request takes a moment to settle.
const SETTLED_TRIES = 20;
const SETTLED_WAIT_MS = 300;
const NANODOLLARS_PER_MTOK_IN_USD = 1e9 * 1e6;
// The most characters of frames that are shown, so that a long answer does not slow the page down.
const MAX_FRAME_CHARS = 400000;

async function* frames(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const parts = (rest + read.value).split("\n\n");
    rest = parts.pop();
    yield parts;
  }
  if (rest) yield [rest];
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export class AnswerColumn {
  // `ask(path, options)` sends a request with the project's key; `receiptUrl` has ID where the id belongs.
  constructor(root, ask, receiptUrl) {
    Object.assign(this, { root, ask, receiptUrl, count: 0 });
  }

  part(name) {
    return this.root.querySelector(`[data-part=${name}]`);
  }

  clear(model) {
    for (const name of ["thoughts", "answer", "frames", "count", "usage", "amount", "ended"]) {
      this.part(name).textContent = "";
    }
    for (const name of ["failure", "reasoning", "cost", "continue", "receipt", "usage", "usage-title"]) {
      this.part(name).hidden = true;
    }
    this.part("model").textContent = model;
    Object.assign(this, { count: 0, pieces: 0, text: "", calls: new Map() });
  }

  // Returns what the answer adds to a conversation; null if it is empty, or the arguments of a call are cut.
  get message() {
    const calls = [...this.calls.values()].map((each) => ({ ...each, arguments: each.arguments || "{}" }));
    const isUsable = (this.text || calls.length) && calls.every((each) => isJson(each.arguments));
    return isUsable ? { text: this.text, calls } : null;
  }

  fail(text) {
    this.part("failure").textContent = text;
    this.part("failure").hidden = false;
  }

  // `price`: nanodollars for a million tokens of output.
  async run(protocol, path, body, { price, signal }) {
    let id;
    this.price = price;
    this.clear(body.model);
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await this.ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
      id = answer.headers.get("x-generation-id");
      if (!answer.ok) {
        this.fail((await answer.json()).error.message);
      } else {
        for await (const parts of frames(answer.body)) this.write(protocol, parts);
        const isWhole = this.part("failure").hidden; // An error can come inside the stream.
        this.part("continue").hidden = !isWhole || !this.message;
        if (isWhole) announce("The answer is complete.");
      }
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error.message);
      else announce("Stopped.");
    }
    if (id) await this.showReceipt(id);
  }

  write(protocol, parts) {
    this.count += parts.length;
    const room = MAX_FRAME_CHARS - this.part("frames").textContent.length;
    if (room > 0) this.part("frames").append(`${parts.join("\n\n")}\n\n`.slice(0, room));
    this.part("count").textContent = `${this.count} frames`;
    for (const event of parts.map(eventOf)) {
      if (!event) continue;
      const thought = protocol.thought(event);
      this.part("thoughts").append(thought);
      if (thought) this.part("reasoning").hidden = false;
      const text = protocol.text(event);
      this.text += text;
      this.part("answer").append(text);
      const calls = protocol.calls(event);
      for (const piece of calls) this.writeCall(piece);
      if (thought || text || calls.length) this.pieces += 1;
      const failure = protocol.failure(event);
      if (failure) this.fail(failure);
      const usage = protocol.usage(event);
      if (usage) this.showUsage(usage);
    }
    this.showLeastCost();
  }

  writeCall({ key, id, name, arguments: text = "" }) {
    if (!this.calls.has(key)) {
      this.calls.set(key, { id, name, arguments: "" });
      this.part("answer").append(`\n${name} `);
    }
    this.calls.get(key).arguments += text;
    this.part("answer").append(text);
  }

  showUsage(usage) {
    this.part("usage").textContent = JSON.stringify({ usage }, null, 2);
    for (const name of ["cost", "usage", "usage-title"]) this.part(name).hidden = false;
  }

  // Each piece of reasoning or text has at least one token. The cost of the input is known at the end only.
  showLeastCost() {
    if (!this.pieces) return;
    this.part("cost").hidden = false;
    const amount = (this.pieces * this.price / NANODOLLARS_PER_MTOK_IN_USD).toFixed(6);
    this.part("amount").textContent = `≥ $${amount}`;
    this.part("ended").textContent = "So far, by the pieces of the answer.";
  }

  async showReceipt(id) {
    this.part("cost").hidden = false;
    this.part("receipt").hidden = false;
    this.part("receipt").href = this.receiptUrl.replace("ID", encodeURIComponent(id));
    for (let tries = 0; tries < SETTLED_TRIES; tries += 1) {
      const answer = await this.ask(`/v1/generations/${encodeURIComponent(id)}`).catch(() => null);
      const receipt = answer?.ok ? await answer.json() : {};
      if (receipt.state === "settled") {
        const { prompt_tokens: input, completion_tokens: output } = receipt.usage;
        this.part("amount").textContent = `$${receipt.net_usd}`;
        this.part("ended").textContent =
          `${receipt.outcome.replaceAll("_", " ")}: ${input} tokens in, ${output} out.`;
        return;
      }
      await new Promise((resolve) => { setTimeout(resolve, SETTLED_WAIT_MS); });
    }
    this.part("ended").textContent = "It is not settled yet; the receipt will have its cost.";
  }
}
