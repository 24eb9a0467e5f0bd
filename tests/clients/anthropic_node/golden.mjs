// What the stream helper makes of golden transcripts, which it gets as a server's answers: the final message,
// or the error.

import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";

const read = {};
for (const path of process.argv.slice(2)) {
  const type = path.endsWith(".sse") ? "text/event-stream" : "application/json";
  const answer = { headers: { "content-type": type }, status: path.endsWith("refused.json") ? 529 : 200 };
  const fetch = async () => new Response(readFileSync(path), answer);
  const client = new Anthropic({ apiKey: "k", baseURL: "http://server", maxRetries: 0, fetch });
  const asked = { model: "m", max_tokens: 9, messages: [{ role: "user", content: "hi" }] };
  read[path] = await client.messages
    .stream(asked)
    .finalMessage()
    .catch((error) => ({ thrown: error.constructor.name, code: error.error.error.details.error_code }));
}
console.log(JSON.stringify(read));
