// Responses: the stream helper, which raises for an event that it does not know or that does not fit.

import { client, tell } from "./client.mjs";

const tools = [{ type: "function", name: "look", parameters: { type: "object" }, strict: false }];
const finals = {};
for (const model of [
  "five", "calls-tools", "sandbox-reasoning", "sandbox-refusal", "sandbox-length", "sandbox-content-filter",
]) {
  const stream = client.responses.stream({
    model, input: "hello", tools: model === "calls-tools" ? tools : [],
  });
  const types = [];
  stream.on("event", (event) => types.push(event.type));
  const response = await stream.finalResponse().catch((error) => ({ error: String(error) }));
  finals[model] = { response, types };
}
const failed = await client.responses
  .stream({ model: "breaks-by-error", input: "hello" })
  .finalResponse()
  .catch((error) => error.constructor.name);
const next = await client.responses.create({
  model: "five",
  input: "again",
  previous_response_id: finals["five"].response.id,
});
tell({ finals, failed, next });
