// Whole answers and streams: text, reasoning, usage, structured output, text completions.

import { embedMany, generateText, jsonSchema, Output, streamText } from "ai";

import { embeddingModel, model, tell, textModel } from "./client.mjs";

const prompt = "hello [sandbox tokens=6]";

const whole = await generateText({ model: model("sandbox"), prompt });

const stream = streamText({ model: model("sandbox"), prompt });
const texts = [];
for await (const text of stream.textStream) texts.push(text);

const reasoned = streamText({ model: model("sandbox-reasoning"), prompt });
let reasoning = "";
for await (const part of reasoned.fullStream) if (part.type === "reasoning-delta") reasoning += part.text;

const completion = await generateText({ model: textModel("sandbox"), prompt });
let completed = "";
for await (const text of streamText({ model: textModel("sandbox"), prompt }).textStream) completed += text;

const schema = jsonSchema({
  type: "object",
  properties: { title: { type: "string" } },
  required: ["title"],
  additionalProperties: false,
});
const structured = await generateText({ model: model("sandbox"), prompt, output: Output.object({ schema }) });

const { embeddings } = await embedMany({ model: embeddingModel, values: ["one", "two"] });

const usage = ({ inputTokens, outputTokens, totalTokens }) => ({ inputTokens, outputTokens, totalTokens });

tell({
  id: whole.response.id,
  text: whole.text,
  finishReason: whole.finishReason,
  usage: usage(whole.usage),
  texts,
  streamedFinishReason: await stream.finishReason,
  streamedUsage: usage(await stream.usage),
  reasoning,
  structured: structured.output,
  completion: completion.text,
  completed,
  embeddings: embeddings.map(({ length }) => length),
});
