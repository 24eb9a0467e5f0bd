// What is thrown for each kind of failure: the error's class, status, type, code and param.

import OpenAI from "openai";

import { client, messages, tell } from "./client.mjs";

const thrownBy = async (ask) => {
  try {
    await ask();
  } catch (error) {
    const { status = null, type, code, param } = error;
    return {
      class: error.constructor.name, isOurs: error instanceof OpenAI.APIError, status, type, code, param,
    };
  }
};
const asking = (model, parameters = {}, options = {}) =>
  thrownBy(() => client.chat.completions.create({ model, messages, ...parameters }, options));
const streaming = (model) =>
  thrownBy(async () => {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) void chunk;
  });

tell({
  wrongKey: await thrownBy(() => client.withOptions({ apiKey: "ck_live_wrong" }).models.list()),
  unknownModel: await asking("gpt-99"),
  wrongParameter: await asking("five", { max_tokens: -1 }),
  busyUpstream: await asking("status-429"),
  failingUpstream: await streaming("status-500"),
  midStream: await streaming("breaks-by-reset"),
  tooSlow: await asking("slow-to-begin", {}, { timeout: 500 }),
});
