// An answer in one piece, and its headers.

import { client, messages, tell } from "./client.mjs";

const { data, response, request_id } =
  await client.chat.completions.create({ model: "five", messages }).withResponse();
tell({ completion: data, requestId: request_id, generationId: response.headers.get("x-generation-id") });
