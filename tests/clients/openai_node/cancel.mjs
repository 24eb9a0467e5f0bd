// Leaves a stream after three tokens: by an AbortController, or by leaving the loop (the argument says
// which).

import { client, messages, tell } from "./client.mjs";

const controller = new AbortController();
const options = { signal: controller.signal };
const stream = await client.chat.completions.create(
  { model: "three-then-silence", messages, stream: true }, options);
let id = null;
let texts = 0;
for await (const chunk of stream) {
  id = chunk.id;
  if (chunk.choices[0]?.delta.content) texts += 1;
  if (texts === 3 && process.argv[2] === "abort") controller.abort();
  if (texts === 3 && process.argv[2] === "break") break;
}
tell({ id, texts, isAborted: stream.controller.signal.aborted });
// Stays alive, so that it is not the end of this process that closes the connection.
process.stdin.resume();
