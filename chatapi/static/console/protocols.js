// The protocols that the playground speaks: one row each, and nothing else in the console knows their fields.
//
// `path(dialect)` of the request; `hasDialects`: whether one can be chosen; `parameters`: the protocol's names of the
// form's parameters that have a field; `takes`: the other fields of the form that it has a place for;
// `body(request)`: what is sent; `thought(event)` (a piece of the reasoning), `text(event)`, `usage(event)` and
// `failure(event)`: what a frame's object says.

const DEFAULT_MAX_TOKENS = 1024; // Of Messages, which require a number.

const withSystem = ({ system, messages }) => (system ? [{ role: "system", content: system }, ...messages] : messages);
const call = (name, argumentsText) => (name ? `\n${name} ` : "") + (argumentsText ?? "");
const jsonSchema = (schema) => ({ type: "json_schema", name: "answer", strict: true, schema });

function chatText({ choices }) {
  const delta = choices?.[0]?.delta ?? {};
  const calls = (delta.tool_calls ?? []).map((each) => call(each.function?.name, each.function?.arguments));
  return (delta.content ?? delta.refusal ?? "") + calls.join("");
}

function responsesText(event) {
  if (event.type === "response.output_item.added" && event.item.type === "function_call") return call(event.item.name);
  const isText = /^response\.(output_text|refusal|function_call_arguments)\.delta$/.test(event.type);
  return isText ? event.delta : "";
}

function messagesText({ type, delta, content_block: block }) {
  if (type === "content_block_start" && block.type === "tool_use") return call(block.name);
  return type === "content_block_delta" ? delta.text ?? delta.partial_json ?? "" : "";
}

export const PROTOCOLS = {
  chat: {
    path: (dialect) => `/${dialect}/v1/chat/completions`,
    hasDialects: true,
    parameters: { temperature: "temperature", top_p: "top_p", max_tokens: "max_completion_tokens", stop_sequences: "stop", seed: "seed" },
    takes: ["system", "tools", "schema"],
    body: (request) => ({
      model: request.model,
      messages: withSystem(request),
      ...request.parameters,
      ...(request.tools && { tools: request.tools.map((each) => ({ type: "function", function: each })) }),
      ...(request.schema && {
        response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: request.schema } },
      }),
      stream: true,
      stream_options: { include_usage: true },
    }),
    thought: ({ choices }) => choices?.[0]?.delta?.reasoning_content ?? "",
    text: chatText,
    usage: (event) => event.usage,
    failure: (event) => event.error?.message,
  },
  responses: {
    path: () => "/v1/responses",
    hasDialects: false,
    parameters: { temperature: "temperature", top_p: "top_p", max_tokens: "max_output_tokens" },
    takes: ["system", "tools", "schema"],
    body: (request) => ({
      model: request.model,
      ...(request.system && { instructions: request.system }),
      input: request.messages,
      ...request.parameters,
      ...(request.tools && { tools: request.tools.map((each) => ({ type: "function", ...each })) }),
      ...(request.schema && { text: { format: jsonSchema(request.schema) } }),
      store: false,
      stream: true,
    }),
    thought: ({ type, delta }) => (/^response\.reasoning_(summary_)?text\.delta$/.test(type) ? delta : ""),
    text: responsesText,
    usage: (event) => event.response?.usage,
    failure: (event) => (event.type === "error" ? event.message : event.response?.error?.message),
  },
  messages: {
    path: () => "/v1/messages",
    hasDialects: false,
    parameters: { temperature: "temperature", top_p: "top_p", max_tokens: "max_tokens", stop_sequences: "stop_sequences" },
    takes: ["system", "tools", "schema"],
    body: (request) => ({
      model: request.model,
      max_tokens: DEFAULT_MAX_TOKENS,
      ...(request.system && { system: request.system }),
      messages: request.messages,
      ...request.parameters,
      ...(request.tools && {
        tools: request.tools.map(({ name, description, parameters }) => ({
          name,
          ...(description && { description }),
          input_schema: parameters ?? { type: "object" },
        })),
      }),
      ...(request.schema && { output_config: { format: { type: "json_schema", schema: request.schema } } }),
      stream: true,
    }),
    thought: ({ type, delta }) => (type === "content_block_delta" ? delta.thinking ?? "" : ""),
    text: messagesText,
    usage: (event) => (event.type === "message_delta" ? event.usage : undefined),
    failure: (event) => event.error?.message,
  },
  completions: {
    path: (dialect) => `/${dialect}/v1/completions`,
    hasDialects: true,
    parameters: { temperature: "temperature", top_p: "top_p", max_tokens: "max_tokens", stop_sequences: "stop", seed: "seed" },
    takes: [],
    body: (request) => ({
      model: request.model,
      prompt: request.messages.map((each) => each.content).join("\n\n"),
      ...request.parameters,
      stream: true,
      stream_options: { include_usage: true },
    }),
    thought: () => "", // Text completions leave the reasoning out.
    text: (event) => event.choices?.[0]?.text ?? "",
    usage: (event) => event.usage,
    failure: (event) => event.error?.message,
  },
};

// The object of a frame's `data:` lines, which may stand between `event:` and `id:`; null if it has none.
export function eventOf(frame) {
  const data = frame
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice("data:".length).trimStart())
    .join("\n");
  return data === "" || data === "[DONE]" ? null : JSON.parse(data);
}
