// Reads the golden transcripts of Responses, whose folder is the argument, with the stream helper.

import { readdirSync, readFileSync } from "node:fs";

import OpenAI from "openai";

const folder = process.argv[2];
const read = {};
for (const file of readdirSync(folder).filter((name) => name.endsWith(".sse"))) {
  const answer = () => new Response(readFileSync(`${folder}/${file}`), { headers: { "content-type": "text/event-stream" } });
  const client = new OpenAI({ apiKey: "none", baseURL: "http://nowhere.invalid/v1", maxRetries: 0, fetch: async () => answer() });
  const stream = client.responses.stream({ model: "m", input: "hello" });
  read[file.replace(".sse", "")] = await stream.finalResponse().then(
    (response) => ({ status: response.status, output: response.output }),
    (error) => ({ error: error.constructor.name, message: error.message }),
  );
}
console.log(JSON.stringify(read));
