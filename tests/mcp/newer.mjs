// The newer TypeScript client, in each of its ways to begin.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { server, work } from "./session.mjs";

for (const mode of ["auto", "legacy", { pin: "2026-07-28" }]) {
  const options = { capabilities: { elicitation: {} }, versionNegotiation: { mode } };
  const client = new Client({ name: "newer", version: "2" }, options);
  client.setRequestHandler("elicitation/create", async () => ({ action: "accept", content: { answer: "once" } }));
  await client.connect(new StdioClientTransport(server));
  await work(client);
}
