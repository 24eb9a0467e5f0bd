// What the SDK makes of golden transcripts, which it gets as a server's answers: the final object, or the
// error.

import { readFileSync } from "node:fs";
import OpenAI from "openai";

const [kind, ...paths] = process.argv.slice(2);
const begin = {
  chat: (client) => client.chat.completions.stream({
    model: "m", messages: [{ role: "user", content: "hi" }],
  }).finalChatCompletion(),
  responses: (client) => client.responses.stream({ model: "m", input: "hi" }).finalResponse(),
  embeddings: (client) => client.embeddings.create({ model: "m", input: ["a", "b"] }),
}[kind];

const read = {};
for (const path of paths) {
  const type = path.endsWith(".sse") ? "text/event-stream" : "application/json";
  const answer = { headers: { "content-type": type }, status: path.endsWith("refused.json") ? 502 : 200 };
  const fetch = async () => new Response(readFileSync(path), answer);
  const client = new OpenAI({ apiKey: "k", baseURL: "http://server/v1", maxRetries: 0, fetch });
  read[path] = await begin(client).catch((error) => ({ thrown: error.constructor.name, code: error.code }));
}
console.log(JSON.stringify(read));
