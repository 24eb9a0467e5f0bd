// Both providers of the AI SDK that speak chat completions, and the result that a script prints for its test.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const { BASE_URL: baseURL, API_KEY: apiKey } = process.env;

const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: "chatapi", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });

export const [model, textModel] = {
  openai: [openai.chat, openai.completion],
  compatible: [compatible.chatModel, compatible.completionModel],
}[process.argv[2]];

export const tell = (result) => console.log(JSON.stringify(result));
