// A plain stream, and what the stream helper makes of one.

import { client, messages, tell } from "./client.mjs";

const stream_options = { include_usage: true };
const chunks = [];
const request = { model: "five", messages, stream: true, stream_options };
for await (const chunk of await client.chat.completions.create(request)) {
  chunks.push(chunk);
}
const runner = client.chat.completions.stream({ model: "calls-tools", messages, stream_options });
tell({ chunks, helped: await runner.finalChatCompletion() });
