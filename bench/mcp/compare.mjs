// Commands through `trunkline mcp` and through the two most used npm servers of its kind, by one client, in turns.
//
//   node compare.mjs BED.json PLACE PROGRAMS PEERS [ROUNDS]
//
// BED.json is what trunkline-testbed printed, PLACE a directory with mcp.toml for a daemon of its own, PROGRAMS the directory of
// trunkline's, PEERS a node_modules with ssh-mcp, mcp-ssh-manager and @modelcontextprotocol/sdk.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const [bedFile, place, programs, peers, rounds = "5"] = process.argv.slice(2);
const bed = JSON.parse(readFileSync(bedFile, "utf8"));
const require = createRequire(peers + "/");
const { Client } = await import(require.resolve("@modelcontextprotocol/sdk/client/index.js"));
const { StdioClientTransport } = await import(require.resolve("@modelcontextprotocol/sdk/client/stdio.js"));

const toml = bed.hosts
  .map((host, n) => `[[profiles]]\nname = "${bed.aliases[n]}"\nhost = "${host.address}"\nport = ${bed.ports[n]}\nuser = "${host.user}"\n` +
    `auth = { type = "key", path = "${host.key}" }\ngroup = "dev"\n`).join("\n");
writeFileSync(place + "/peer.toml", toml, { mode: 0o600 });
const managed = Object.fromEntries(bed.hosts.flatMap((host, n) => {
  const name = "SSH_SERVER_" + bed.aliases[n].toUpperCase();
  return [[name + "_HOST", host.address], [name + "_USER", host.user], [name + "_PORT", String(bed.ports[n])], [name + "_KEYPATH", host.key]];
}));

const servers = {
  trunkline: {
    start: { command: programs + "/trunkline", args: ["mcp"], env: { TRUNKLINE_DIR: place } },
    call: (hosts, command) => [{ name: "run", arguments: { hosts, command } }],
  },
  "ssh-mcp": {
    start: {
      command: "node",
      args: [peers + "/ssh-mcp/build/index.js", "--host=" + bed.hosts[0].address, "--port=" + bed.ports[0], "--user=" + bed.hosts[0].user,
        "--key=" + bed.hosts[0].key, "--group=dev", "--hostKeyMode=insecure", "--disableApproval"],
    },
    one: true,
    call: (hosts, command) => hosts.map(() => ({ name: process.env.SSH_MCP_TOOL ?? "run-command", arguments: { command } })),
  },
  "mcp-ssh-manager": {
    start: { command: "node", args: [peers + "/mcp-ssh-manager/src/index.js"], env: { ...managed, PATH: process.env.PATH, HOME: place } },
    call: (hosts, command) => hosts.map((server) => ({ name: "ssh_execute", arguments: { server, command } })),
  },
};

const median = (times) => times.sort((a, b) => a - b)[times.length >> 1];
const clients = {};
for (const [name, server] of Object.entries(servers)) {
  const client = new Client({ name: "compare", version: "1" });
  await client.connect(new StdioClientTransport({ ...server.start, stderr: "ignore" }));
  clients[name] = client;
  if (process.env.LIST) console.log(name, (await client.listTools()).tools.map((tool) => tool.name).join(" "));
}
const run = async (name, hosts, command) => {
  const began = process.hrtime.bigint();
  const calls = servers[name].call(hosts, command).map((call) => clients[name].callTool(call));
  for (const answer of await Promise.all(calls)) if (answer.isError) throw new Error(name + ": " + JSON.stringify(answer.content).slice(0, 300));
  return Number(process.hrtime.bigint() - began) / 1e6;
};

const result = {};
for (const name of Object.keys(servers)) {
  result[name] = { cold_ms: await run(name, bed.aliases.slice(0, 1), "true"), warm_ms: [], twenty_ms: [], forty_ms: [] };
}
for (let round = 0; round < Number(rounds); round++) {
  for (const name of Object.keys(servers)) {
    result[name].warm_ms.push(await run(name, bed.aliases.slice(0, 1), "true"));
    let twenty = 0;
    for (let n = 0; n < 20; n++) twenty += await run(name, bed.aliases.slice(0, 1), "true");
    result[name].twenty_ms.push(twenty);
    if (bed.aliases.length > 1 && !servers[name].one) result[name].forty_ms.push(await run(name, bed.aliases, "true"));
  }
}
for (const [name, row] of Object.entries(result)) {
  const shown = Object.entries(row).map(([key, value]) => [key, Array.isArray(value) ? median(value)?.toFixed(1) : value.toFixed(1)]);
  console.log(name.padEnd(16), Object.fromEntries(shown));
}
process.exit(0);
