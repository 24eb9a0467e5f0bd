// Messages: the stream helper, which gives each delta to the last block and raises for an end without its
// stop.

import Anthropic from "@anthropic-ai/sdk";

const { URL: baseURL, API_KEY: apiKey } = process.env;
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const tools = [{ name: "look", input_schema: { type: "object" } }];
const asking = (model) => ({
  model,
  max_tokens: 100,
  messages: [{ role: "user", content: "hello" }],
  ...(model === "calls-tools" ? { tools } : {}),
});

const streamed = {};
const whole = {};
for (const model of [
  "five", "calls-tools", "sandbox-reasoning", "sandbox-refusal", "sandbox-length", "sandbox-content-filter",
]) {
  streamed[model] = await client.messages.stream(asking(model)).finalMessage();
  whole[model] = await client.messages.create(asking(model));
}
const thrownBy = (promise) => promise.then(
  () => null, (error) => [error.constructor.name, error.status ?? null]);
const broken = await thrownBy(client.messages.stream(asking("breaks-by-error")).finalMessage());
const unknown = await thrownBy(client.messages.create(asking("gpt-99")));
const { input_tokens: counted } = await client.messages.countTokens({
  model: "five", messages: asking("five").messages,
});
const models = [];
for await (const model of client.models.list({ limit: 3 })) models.push(model.id);

console.log(JSON.stringify({ streamed, whole, broken, unknown, counted, models }));
