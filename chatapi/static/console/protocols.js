// The protocols of the playground, one row each. No other file of the console knows their fields.
//
// path(dialect)   the path of a request
// hasDialects     whether a dialect can be chosen
// parameters      the protocol's names of the form's parameters, by the ids of their fields
// takes           the form's other fields that the protocol has
// body(request)   the body of a request
// thought(event)  a piece of the reasoning in a frame's object
// text(event)     a piece of the text
// calls(event)    pieces of tool calls: `key` tells the calls apart, and a call's first piece has its name
// usage(event)    the usage
// failure(event)  the message of an error
//
// A message of `request.messages` has a role, its content, and `calls`: its tool calls, each with its result.

const DEFAULT_MAX_TOKENS = 1024; // For Messages, which require a number.

// If there are several choices, whose pieces come mixed, only the first choice is shown.
const firstChoice = ({ choices }) => choices?.find((each) => each.index === 0);

const jsonSchema = (schema) => ({ type: "json_schema", name: "answer", strict: true, schema });

function chatMessages({ role, content, calls }) {
  if (!calls.length) return [{ role, content }];
  const called = calls.map(({ id, name, arguments: text }) => (
    { id, type: "function", function: { name, arguments: text } }
  ));
  return [
    { role, content: content || null, tool_calls: called },
    ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result })),
  ];
}

function responsesItems({ role, content, calls }) {
  return [
    ...(content || !calls.length ? [{ role, content }] : []),
    ...calls.map(({ id, name, arguments: text }) => (
      { type: "function_call", call_id: id, name, arguments: text }
    )),
    ...calls.map(({ id, result }) => ({ type: "function_call_output", call_id: id, output: result })),
  ];
}

function messagesTurns({ role, content, calls }) {
  if (!calls.length) return [{ role, content }];
  const said = content ? [{ type: "text", text: content }] : [];
  const called = calls.map(({ id, name, arguments: text }) => (
    { type: "tool_use", id, name, input: JSON.parse(text) }
  ));
  const results = calls.map(({ id, result }) => ({ type: "tool_result", tool_use_id: id, content: result }));
  return [{ role, content: [...said, ...called] }, { role: "user", content: results }];
}

function chatCalls(event) {
  const pieces = firstChoice(event)?.delta?.tool_calls ?? [];
  return pieces
    .filter((each) => each.function)
    .map(({ index, id, function: its }) => ({ key: index, id, name: its.name, arguments: its.arguments }));
}

function chatText(event) {
  const delta = firstChoice(event)?.delta;
  return delta?.content ?? delta?.refusal ?? "";
}

function responsesText({ type, delta }) {
  return /^response\.(output_text|refusal)\.delta$/.test(type) ? delta : "";
}

function responsesCalls({ type, item, output_index: key, delta }) {
  if (type === "response.output_item.added" && item.type === "function_call") {
    return [{ key, id: item.call_id, name: item.name }];
  }
  return type === "response.function_call_arguments.delta" ? [{ key, arguments: delta }] : [];
}

function messagesCalls({ type, index: key, delta, content_block: block }) {
  if (type === "content_block_start" && block.type === "tool_use") {
    return [{ key, id: block.id, name: block.name }];
  }
  return type === "content_block_delta" && delta.partial_json ? [{ key, arguments: delta.partial_json }] : [];
}

export const PROTOCOLS = {
  chat: {
    path: (dialect) => `/${dialect}/v1/chat/completions`,
    hasDialects: true,
    parameters: {
      temperature: "temperature", top_p: "top_p", max_tokens: "max_completion_tokens",
      stop_sequences: "stop", seed: "seed",
    },
    takes: ["system", "tools", "schema"],
    body: (request) => ({
      model: request.model,
      messages: [
        ...(request.system ? [{ role: "system", content: request.system }] : []),
        ...request.messages.flatMap(chatMessages),
      ],
      ...request.parameters,
      ...(request.tools && { tools: request.tools.map((each) => ({ type: "function", function: each })) }),
      ...(request.schema && {
        response_format: {
          type: "json_schema", json_schema: { name: "answer", strict: true, schema: request.schema },
        },
      }),
      stream: true,
      stream_options: { include_usage: true },
    }),
    thought: (event) => firstChoice(event)?.delta?.reasoning_content ?? "",
    text: chatText,
    calls: chatCalls,
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
      input: request.messages.flatMap(responsesItems),
      ...request.parameters,
      ...(request.tools && { tools: request.tools.map((each) => ({ type: "function", ...each })) }),
      ...(request.schema && { text: { format: jsonSchema(request.schema) } }),
      store: false,
      stream: true,
    }),
    thought: ({ type, delta }) => (/^response\.reasoning_(summary_)?text\.delta$/.test(type) ? delta : ""),
    text: responsesText,
    calls: responsesCalls,
    usage: (event) => event.response?.usage,
    failure: (event) => (event.type === "error" ? event.message : event.response?.error?.message),
  },
  messages: {
    path: () => "/v1/messages",
    hasDialects: false,
    parameters: {
      temperature: "temperature", top_p: "top_p", max_tokens: "max_tokens",
      stop_sequences: "stop_sequences",
    },
    takes: ["system", "tools", "schema"],
    body: (request) => ({
      model: request.model,
      max_tokens: DEFAULT_MAX_TOKENS,
      ...(request.system && { system: request.system }),
      messages: request.messages.flatMap(messagesTurns),
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
    text: ({ type, delta }) => (type === "content_block_delta" ? delta.text ?? "" : ""),
    calls: messagesCalls,
    usage: (event) => (event.type === "message_delta" ? event.usage : undefined),
    failure: (event) => event.error?.message,
  },
  completions: {
    path: (dialect) => `/${dialect}/v1/completions`,
    hasDialects: true,
    parameters: {
      temperature: "temperature", top_p: "top_p", max_tokens: "max_tokens",
      stop_sequences: "stop", seed: "seed",
    },
    takes: [],
    body: (request) => ({
      model: request.model,
      prompt: request.messages.map((each) => each.content).join("\n\n"),
      ...request.parameters,
      stream: true,
      stream_options: { include_usage: true },
    }),
    thought: () => "", // Text completions leave the reasoning out.
    text: (event) => firstChoice(event)?.text ?? "",
    calls: () => [],
    usage: (event) => event.usage,
    failure: (event) => event.error?.message,
  },
};

// Returns the object in a frame's `data:` lines, which may be between `event:` and `id:`; null without one.
export function eventOf(frame) {
  const data = frame
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice("data:".length).trimStart())
    .join("\n");
  return data === "" || data === "[DONE]" ? null : JSON.parse(data);
}
