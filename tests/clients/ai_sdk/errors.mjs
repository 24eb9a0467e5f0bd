// What is thrown before the first token, and what a stream tells that breaks off or is left.

import { APICallError, generateText, streamText } from "ai";

import { model, tell } from "./client.mjs";

const prompt = "hello";
const maxRetries = 0;

const thrownBy = async (name, more = {}) => {
  try {
    await generateText({ model: model(name), prompt, maxRetries, ...more });
  } catch (error) {
    return {
      isOurs: APICallError.isInstance(error),
      status: error.statusCode,
      isRetryable: error.isRetryable,
      message: error.message,
    };
  }
};

const partsOf = async (name, more = {}) => {
  const parts = [];
  const stream = streamText({ model: model(name), prompt, maxRetries, onError: () => {}, ...more });
  for await (const part of stream.fullStream) parts.push(part);
  return parts;
};

const brokenOff = await partsOf("breaks-by-error");
const controller = new AbortController();
const left = await partsOf("three-then-silence", {
  abortSignal: controller.signal,
  onChunk: ({ chunk }) => chunk.text === " and" && controller.abort(),
});

tell({
  unknownModel: await thrownBy("gpt-99"),
  wrongParameter: await thrownBy("five", { temperature: 5 }),
  busyUpstream: await thrownBy("status-429"),
  failingUpstream: await thrownBy("status-500"),
  brokenOff: brokenOff.map(({ type }) => type),
  error: brokenOff.find(({ type }) => type === "error")?.error,
  left: left.map(({ type }) => type),
});
