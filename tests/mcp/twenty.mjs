// The newer TypeScript client takes the steps of twenty.py.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { server } from "./session.mjs";

const asked = [];
const kept = {};
const options = { capabilities: { elicitation: {} }, versionNegotiation: { mode: { pin: "2026-07-28" } } };
const client = new Client({ name: "typescript", version: "2" }, options);
client.setRequestHandler("elicitation/create", async ({ params }) => {
  asked.push(params.message);
  return { action: "accept", content: { answer: "once" } };
});
await client.connect(new StdioClientTransport(server));
await client.listTools();
const filled = (value) => (typeof value === "string" && value.startsWith("$") ? kept[value.slice(1)] : value);
for (const [index, step] of JSON.parse(process.env.STEPS).entries()) {
  asked.length = 0;
  const given = Object.fromEntries(Object.entries(step.with ?? {}).map(([name, value]) => [name, filled(value)]));
  const result = await client.callTool({ name: step.tool, arguments: given });
  const text = result.content.map((block) => block.text).join("\n");
  const where = `step ${index + 1}: ${JSON.stringify(step)}\n${text}\n${asked}`;
  assert.equal(Boolean(result.isError), "denied" in step, where);
  for (const words of [...(step.has ?? []), step.denied ?? ""]) assert.ok(text.includes(words), where);
  assert.equal(asked.length, "asks" in step ? 1 : 0, where);
  assert.ok(asked.join("").includes(step.asks ?? ""), where);
  for (const [name, key] of Object.entries(step.keep ?? {})) {
    kept[name] = result.structuredContent[key] ?? result.structuredContent.hosts[0][key];
  }
}
await client.close();
