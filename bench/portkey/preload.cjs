// The headers of a response of fetch() cannot be changed, and the gateway changes them: without this, each of
// its streams ends with status 500 ("immutable") on Node.js 18, 20 and 22.
const { fetch } = globalThis;
globalThis.fetch = async (...request) => {
  const response = await fetch(...request);
  return new Response(response.body, response);
};
