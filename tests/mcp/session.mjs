// What a TypeScript client does with hosts: it compiles each tool's output schema, and checks answers by them.
import assert from "node:assert/strict";
import { existsSync, rmSync } from "node:fs";

const { BED_COMMAND, BED_HOST, BED_FILES, TRUNKLINE_DIR, TRUNKLINED } = process.env;

export const server = { command: BED_COMMAND, args: ["mcp"], env: { TRUNKLINE_DIR, TRUNKLINED } };

export async function work(client) {
  assert.equal((await client.listTools()).tools.length, 11);
  const run = async (command) => client.callTool({ name: "run", arguments: { hosts: [BED_HOST], command } });
  assert.equal((await run("echo hello")).structuredContent.hosts[0].stdout.text, "hello\n");
  // A gigabyte, of characters that take six bytes each in JSON, ends no connection.
  assert.equal((await run("head -c 1000000000 /dev/zero")).structuredContent.hosts[0].stdout.total_bytes, 1e9);
  assert.equal((await run("touch " + BED_FILES + "/made")).isError, false);
  assert.ok(existsSync(BED_FILES + "/made"));
  assert.equal((await run("id")).isError, true);
  const path = BED_FILES + "/x";
  const written = await client.callTool({ name: "write", arguments: { host: BED_HOST, path, content: "x" } });
  assert.equal(written.structuredContent.created, true);
  for (const name of ["list", "stat", "search", "tail", "read"]) {
    const more = name === "search" ? { pattern: "x" } : {};
    const answer = await client.callTool({ name, arguments: { host: BED_HOST, path: name === "list" ? BED_FILES : path, ...more } });
    assert.equal(answer.isError, false, JSON.stringify(answer));
  }
  rmSync(path);
  await client.close();
}
