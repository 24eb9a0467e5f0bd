// Reads a chat completion's stream piece by piece: `{status, type, pieces, text, failure, leftAfter}`. It
// leaves after `stopAfter` tokens.

async ({ path, key, body, stopAfter = Infinity }) => {
  const controller = new AbortController();
  const headers = { "Authorization": `Bearer ${key}`, "Content-Type": "application/json" };
  const response = await fetch(path, {
    method: "POST", headers, body: JSON.stringify(body), signal: controller.signal,
  });
  const found = {
    status: response.status, type: response.headers.get("content-type"),
    pieces: 0, text: "", tokens: 0, failure: null,
  };
  if (!response.ok) return { ...found, failure: (await response.json()).error };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return found;
      found.pieces += 1;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      const lines = events.flatMap((event) => event.split("\n"));
      for (const data of lines.filter((line) => line.startsWith("data: "))) {
        if (data === "data: [DONE]") continue;
        const { choices, error } = JSON.parse(data.slice(6));
        if (error) found.failure = error;
        const content = choices?.[0]?.delta.content;
        if (!content) continue;
        found.text += content;
        found.tokens += 1;
        if (found.tokens === stopAfter) controller.abort();
      }
    }
  } catch (thrown) {
    return { ...found, failure: { name: thrown.name } };
  }
};
