// The providers of the AI SDK, and the result that a script prints for its test.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const { BASE_URL: baseURL, API_KEY: apiKey } = process.env;

const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({
  name: "chatapi", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});

const anthropic = createAnthropic({ baseURL, apiKey });

export const embeddingModel = openai.embedding("sandbox-embedding");
// The default model of `openai` speaks Responses.
export const [model, textModel] = {
  openai: [openai, openai.completion],
  chat: [openai.chat, openai.completion],
  anthropic: [anthropic, openai.completion],
  compatible: [compatible.chatModel, compatible.completionModel],
}[process.argv[2]];

export const tell = (result) => console.log(JSON.stringify(result));
