// OpenAI's client for the service that the environment names, and the result that a script prints for its
// test.

import OpenAI from "openai";

export const client = new OpenAI({
  baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0,
});

export const messages = [{ role: "user", content: "hello" }];

export const tell = (result) => console.log(JSON.stringify(result));
