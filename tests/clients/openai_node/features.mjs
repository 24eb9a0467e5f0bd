// What models can do: structured output, an agent's loop with a tool, two choices, log probabilities.

import { client, tell } from "./client.mjs";

const messages = [{ role: "user", content: "hello [sandbox tokens=6]" }];
const { completions } = client.chat;

const schema = {
  type: "object",
  properties: { title: { type: "string" } },
  required: ["title"],
  additionalProperties: false,
};
const response_format = { type: "json_schema", json_schema: { name: "event", strict: true, schema } };
const structured = await completions.parse({ model: "sandbox", messages, response_format });

const asked = [];
const weather = {
  name: "weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  parse: JSON.parse,
  function: ({ city }) => (asked.push(city), "sunny"),
};
const tools = [{ type: "function", function: weather }];
const looped = await completions.runTools({
  model: "sandbox-tool-call", messages, tools, stream: true,
}).finalContent();

const two = ["", ""];
for await (const chunk of await completions.create({ model: "sandbox", messages, n: 2, stream: true })) {
  for (const choice of chunk.choices) two[choice.index] += choice.delta.content ?? "";
}

const spelt = completions.stream({ model: "sandbox", messages, logprobs: true, top_logprobs: 2 });
const [choice] = (await spelt.finalChatCompletion()).choices;

tell({
  structured: structured.choices[0].message.content,
  asked,
  looped,
  two,
  text: choice.message.content,
  tokens: choice.logprobs.content.map(({ token }) => token),
});
