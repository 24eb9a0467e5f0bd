// An agent's loop: the model calls two tools, each is run, and the model answers. Whole, then streamed.

import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";

import { model, tell } from "./client.mjs";

const asked = [];
const aboutCity = (name) =>
  tool({
    description: `The ${name} in a city`,
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
    execute: async ({ city }) => (asked.push([name, typeof city]), "sunny"),
  });
const asking = {
  model: model("sandbox-parallel-tool-calls"),
  prompt: "Weather and time in Paris? [sandbox tokens=6]",
  tools: { weather: aboutCity("weather"), time: aboutCity("time") },
  stopWhen: isStepCount(5),
};

const whole = await generateText(asking);
const stream = streamText(asking);
await stream.consumeStream();
const steps = await stream.steps;

tell({
  asked,
  whole: whole.steps.map((step) => [step.finishReason, step.text]),
  streamed: steps.map((step) => [step.finishReason, step.text]),
});
