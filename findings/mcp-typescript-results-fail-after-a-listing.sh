#!/usr/bin/env bash
# MCP TypeScript SDK: a tool's result that its server lets pass is an error for its client, once that has listed tools.
#
# Seen with: @modelcontextprotocol/sdk 1.32.2 with zod 4.6.7, server and client of the same version.
#
# McpServer checks structuredContent with the tool's zod schema and sends what the tool gave, not what zod made of it.
# What a zod object fills in (default), converts (coerce, trim) or ignores (other members) is right for the server. The
# client checks with the JSON Schema of the listing, where the same members are required, typed and closed. It keeps
# that schema from listTools(), so callTool() works before the first listing and fails after it.
#
# Why it matters: the tool has run, with all that it does, and the caller gets an exception and no result. A test that
# calls without a listing passes, and clients that always list fail. Let the tool parse its result with the schema
# before it returns it, and keep outputSchema free of default, coerce and trim.
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

const tools = {
  exact: [{ size: z.number() }, { size: 1 }],
  another: [{ size: z.number() }, { size: 1, unit: 'KiB' }],
  default: [{ size: z.number().default(0) }, {}],
  coerce: [{ size: z.coerce.number() }, { size: '1' }],
  trim: [{ name: z.string().trim().max(3) }, { name: ' web ' }],
};
const server = new McpServer({ name: 'finding', version: '1' });
for (const [name, [outputSchema, structuredContent]] of Object.entries(tools)) {
  server.registerTool(name, { outputSchema }, async () => ({ content: [], structuredContent }));
}
const client = new Client({ name: 'finding', version: '1' });
const [one, other] = InMemoryTransport.createLinkedPair();
await server.connect(one);
await client.connect(other);

async function callAll(when) {
  for (const name of Object.keys(tools)) {
    const result = await client.callTool({ name, arguments: {} }).then(
      ({ structuredContent }) => JSON.stringify(structuredContent),
      (error) => error.message.replace(/.*: /, ''),
    );
    console.log(`${when}, ${name}: ${result}`);
  }
}
await callAll('before listTools');
await client.listTools();
await callAll('after listTools');
await client.close();
JS
timeout 60 node run.mjs >actual

cat >expected <<'END'
before listTools, exact: {"size":1}
before listTools, another: {"size":1,"unit":"KiB"}
before listTools, default: {}
before listTools, coerce: {"size":"1"}
before listTools, trim: {"name":" web "}
after listTools, exact: {"size":1}
after listTools, another: data must NOT have additional properties
after listTools, default: data must have required property 'size'
after listTools, coerce: data/size must be number
after listTools, trim: data/name must NOT have more than 3 characters
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
