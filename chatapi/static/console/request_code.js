// A chat request as code that can be pasted: curl, Python and Node.js.

const KEY = "YOUR_KEY";

// One quote in a text of the shell: close the text, a quoted quote, open it again.
const shell = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

export function curl(origin, body) {
  return `curl -N ${origin}/openai/v1/chat/completions \\
  -H "Authorization: Bearer ${KEY}" \\
  -H "Content-Type: application/json" \\
  -d ${shell(JSON.stringify(body, null, 2))}
`;
}

// JSON's strings and numbers are Python's; its three words are not.
function literal(value, indent) {
  const inner = `${indent}    `;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[\n${value.map((each) => `${inner}${literal(each, inner)},\n`).join("")}${indent}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, inner)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export function python(origin, body) {
  const parameters = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`).join("");
  return `# pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="${origin}/openai/v1",
    api_key="${KEY}",
)
stream = client.chat.completions.create(
${parameters})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print(f"\\n{chunk.usage}")
`;
}

export function node(origin, body) {
  return `// npm install openai, and save this as request.mjs
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: "${origin}/openai/v1",
  apiKey: "${KEY}",
});
const stream = await client.chat.completions.create(${JSON.stringify(body, null, 2)});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
  if (chunk.usage) console.log("\\n", chunk.usage);
}
`;
}
