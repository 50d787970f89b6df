// The MCP SDK in JavaScript before the gateway: the same calls twice.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

for (let round = 0; round < 2; round++) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
  console.log("tools", JSON.stringify((await client.listTools()).tools.map((each) => each.name)));
  console.log("call", JSON.stringify((await client.callTool({ name: "search", arguments: { query: "ports" } })).content));
  await client.close();
}
