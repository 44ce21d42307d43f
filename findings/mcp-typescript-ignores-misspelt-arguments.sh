#!/usr/bin/env bash
# MCP TypeScript SDK: a misspelt argument is dropped and the tool runs without it; one tool can hide all others.
#
# Seen with: @modelcontextprotocol/sdk 1.32.2 with zod 4.6.7, server and client of the same version.
#
# The schema that is listed for a tool's arguments is open, and members it does not name are taken out before the tool
# sees them, without an error. (The schema of results is closed, in the same listing.) A tool with a type that JSON
# Schema does not have, such as z.date(), can be registered and called; the listing then fails for all tools.
#
# Why it matters: models guess names. "dryRun" or "dry-run" for "dry_run" means that the tool does the real thing and
# reports success. Pass z.strictObject() as inputSchema to have such a call refused, and list the tools in a test.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --ignore-scripts @modelcontextprotocol/sdk@1.32.2 zod@4.6.7 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }

cat >run.mjs <<'JS'
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { z } from 'zod';

async function start(tools) {
  const server = new McpServer({ name: 'finding', version: '1' });
  for (const [name, inputSchema] of Object.entries(tools)) {
    const show = async (given) => ({ content: [{ type: 'text', text: `the tool has ${JSON.stringify(given)}` }] });
    server.registerTool(name, { inputSchema }, show);
  }
  const client = new Client({ name: 'finding', version: '1' });
  const [one, other] = InMemoryTransport.createLinkedPair();
  await server.connect(one);
  await client.connect(other);
  return client;
}

async function call(client, name, given) {
  const { isError, content } = await client.callTool({ name, arguments: given });
  console.log(`${name}, ${JSON.stringify(given)}: ${isError ? 'an error' : content[0].text}`);
}

async function list(client) {
  const result = await client.listTools().then(({ tools }) => tools.map(({ name }) => name), (error) => error.message);
  console.log('listing:', String(result));
}

const fields = { path: z.string(), dry_run: z.boolean().optional() };
let client = await start({ open: fields, closed: z.strictObject(fields) });
await list(client);
for (const name of ['open', 'closed']) {
  await call(client, name, { path: 'old', dry_run: true });
  await call(client, name, { path: 'old', dryRun: true });
}
await client.close();

client = await start({ open: fields, dated: { until: z.date().optional() } });
await list(client);
await call(client, 'open', { path: 'old' });
await call(client, 'dated', {});
await client.close();
JS
timeout 60 node run.mjs >actual

cat >expected <<'END'
listing: open,closed
open, {"path":"old","dry_run":true}: the tool has {"path":"old","dry_run":true}
open, {"path":"old","dryRun":true}: the tool has {"path":"old"}
closed, {"path":"old","dry_run":true}: the tool has {"path":"old","dry_run":true}
closed, {"path":"old","dryRun":true}: an error
listing: MCP error -32603: Date cannot be represented in JSON Schema
open, {"path":"old"}: the tool has {"path":"old"}
dated, {}: the tool has {}
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
