// The SDKs of OpenAI and Anthropic in JavaScript before the gateway: the same calls twice.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "sk", maxRetries: 0 });
const messages = [{ role: "user", content: "Which ports?" }];
const schema = { type: "object", properties: {} };
const say = (kind, ...what) => console.log(kind, what.map((each) => JSON.stringify(each)).join(" "));

for (let round = 0; round < 2; round++) {
  say("chat", (await openai.chat.completions.create({ model: "m", messages })).choices[0].message.content);
  let text = "";
  for await (const chunk of await openai.chat.completions.create({ model: "m", messages, stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  say("chat-stream", text);
  const called = await openai.chat.completions.stream({
    model: "m", messages: [{ role: "user", content: "call the tools" }],
    tools: [{ type: "function", function: { name: "weather", parameters: schema } }],
  }).finalChatCompletion();
  say("tools", called.choices[0].message.tool_calls);
  say("responses", (await openai.responses.create({ model: "m", input: "Which ports?" })).output_text);
  say("responses-stream", (await openai.responses.stream({ model: "m", input: "Which ports?" }).finalResponse()).output_text);
  say("embeddings", (await openai.embeddings.create({ model: "m", input: ["a", "bb"] })).data.map((each) => each.embedding));
  const whole = await anthropic.messages.create({ model: "c", max_tokens: 9000, messages });
  say("messages", whole.content, whole.usage.output_tokens);
  const streamed = await anthropic.messages.stream({
    model: "c", max_tokens: 9000, messages: [{ role: "user", content: "think and call" }],
    thinking: { type: "enabled", budget_tokens: 2000 }, tools: [{ name: "weather", input_schema: schema }],
  }).finalMessage();
  say("messages-stream", streamed.content, streamed.stop_reason, streamed.usage.output_tokens);
}
