// The Vercel AI SDK before the gateway: the same calls twice.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, isStepCount, jsonSchema, stepCountIs, streamText, tool } from "ai";

const url = process.argv[2];
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "sk" });
const compatible = createOpenAICompatible({ name: "nearhit", baseURL: `${url}/v1`, apiKey: "sk" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "sk" });
const weather = tool({
  description: "The weather.",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } } }),
  execute: async ({ city }) => `sunny in ${city ?? ""}`,
});
const say = (kind, what) => console.log(kind, JSON.stringify(what));
const models = { chat: openai.chat("m"), responses: openai.responses("m"), compatible: compatible("m"), messages: anthropic("claude-sonnet-4-5") };
const twoSteps = (stepCountIs ?? isStepCount)(2);

for (let round = 0; round < 2; round++) {
  for (const [name, model] of Object.entries(models)) {
    say(name, (await generateText({ model, prompt: "Which ports?", maxRetries: 0 })).text);
    const streamed = streamText({ model, prompt: "Which ports?", maxRetries: 0 });
    say(`${name}-stream`, [await streamed.text, await streamed.finishReason]);
    if (name === "responses") continue;
    const called = await generateText({ model, prompt: "please call the weather", tools: { weather }, stopWhen: twoSteps, maxRetries: 0 });
    say(`${name}-tools`, [called.text, called.steps.length]);
  }
  const embeddings = await embedMany({ model: openai.textEmbeddingModel?.("m") ?? openai.embedding("m"), values: ["a", "bb"], maxRetries: 0 });
  say("embeddings", embeddings.embeddings);
}
