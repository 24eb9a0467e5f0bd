// All models, and one by its name.

import { client, tell } from "./client.mjs";

const ids = [];
for await (const model of client.models.list()) {
  ids.push(model.id);
}
tell({ ids, one: await client.models.retrieve("five") });
