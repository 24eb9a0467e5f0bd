// Text completions, whole and streamed.

import { client, tell } from "./client.mjs";

const asking = { model: "sandbox", prompt: "Once upon a time [sandbox tokens=6]" };
const completion = await client.completions.create(asking);
const chunks = [];
for await (const chunk of await client.completions.create({ ...asking, stream: true })) chunks.push(chunk);
tell({ completion, chunks });
