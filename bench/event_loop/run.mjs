// What streams over SSH cost the event loop of Node, by each of the ways to have them (bench/README.md).
//
//   node run.mjs --programs target/release --out target/bench [--quick] [--scenario NAME]... [--client NAME]... [--rounds N]
//
// Writes event-loop.json and event-loop.html.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { CLIENTS } from './clients.mjs';
import { page } from './report.mjs';

const { values: args } = parseArgs({
  options: {
    programs: { type: 'string', default: 'target/release' },
    out: { type: 'string', default: 'target/bench' },
    quick: { type: 'boolean', default: false },
    scenario: { type: 'string', multiple: true },
    client: { type: 'string', multiple: true },
    rounds: { type: 'string', default: '1' },
  },
});

const programs = resolve(args.programs);
const BLOCK = 32 * 1024;
const blocks = (megabytes) => `${programs}/bench-stream ${BLOCK} ${(megabytes * 1e6) / BLOCK}`;
const lines = (perSecond) => `${programs}/bench-stream 200 ${perSecond}`;
const unthrottled = `${programs}/bench-stream ${BLOCK}`;

/** `target`: its figures are held against targets. It is part of every round, and of a run at small sizes. */
const SCENARIOS = [
  { name: 'blocks-0.2', title: '20 hosts, 0.2 MB/s each', hosts: 20, command: blocks(0.2) },
  { name: 'blocks-2', title: '20 hosts, 2 MB/s each', hosts: 20, command: blocks(2) },
  { name: 'blocks-8', title: '20 hosts, 8 MB/s each', hosts: 20, command: blocks(8), target: true },
  { name: 'lines-500', title: '20 hosts, 500 lines/s each', hosts: 20, command: lines(500) },
  { name: 'lines-2000', title: '20 hosts, 2,000 lines/s each', hosts: 20, command: lines(2000), target: true },
  { name: 'unthrottled-4', title: '4 streams, unthrottled', hosts: 4, command: unthrottled, target: true },
  { name: 'unthrottled-20', title: '20 streams, unthrottled', hosts: 20, command: unthrottled, target: true },
  ...[1, 4, 8, 20].map((hosts) => ({
    name: `throughput-${hosts}`,
    title: `${hosts} unthrottled, nothing pinned`,
    hosts,
    command: unthrottled,
    unpinned: true,
    target: true,
  })),
];

/** The two that targets are about. The others are measured once. */
const RIVALS = ['ssh2', 'trunkline'];
/** And the client that sshd's work is compared with, where nothing is pinned. */
const OPENSSH = 'ssh, a process a host';

/** sshd servers, on CPU 1 where runs are pinned. They end with their standard input. */
async function servers(count, pinned, ...more) {
  const words = [...(pinned ? ['taskset', '-c', '1'] : []), join(programs, 'trunkline-testbed')];
  const options = ['--servers', String(count), '--config', 'Compression no', '--config', 'MaxStartups 4000', ...more];
  const child = spawn(words[0], [...words.slice(1), ...options], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await once(createInterface(child.stdout), 'line');
  const { hosts, aliases, ssh_config: config } = JSON.parse(line);
  return {
    pid: child.pid,
    hosts: hosts.map((host, n) => ({ ...host, alias: aliases[n], config })),
    async stop() {
      const ended = once(child, 'exit');
      child.stdin.end();
      await ended;
    },
  };
}

/** One client in one scenario. */
async function measure(scenario, client) {
  const pinned = !scenario.unpinned;
  const testbed = await servers(scenario.hosts, pinned);
  try {
    const { heap } = CLIENTS[client];
    const task = {
      client,
      hosts: testbed.hosts,
      command: scenario.command,
      streams: scenario.hosts,
      seconds: args.quick ? 3 : 4,
      floor: 1,
      pinned,
      servers: testbed.pid,
    };
    const subject = [
      ...(heap ? [`--max-old-space-size=${heap * 3}`] : []),
      fileURLToPath(new URL('./subject.mjs', import.meta.url)),
      JSON.stringify(task),
    ];
    return figures(await node(subject));
  } finally {
    await testbed.stop();
  }
}

/** Runs Node and returns what it prints. No agent takes part, and no daemon but its own. */
async function node(words) {
  const { SSH_AUTH_SOCK: _, ...env } = process.env;
  env.TRUNKLINE_PROGRAM = join(programs, 'trunkline');
  const child = spawn(process.execPath, words, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (output += text));
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the process ended with ${code}`);
  return JSON.parse(output);
}

/** Connected hosts that say nothing, in one process. */
async function measureIdle(count) {
  const testbed = await servers(4, false, '--any-address');
  try {
    const program = fileURLToPath(new URL('./idle.mjs', import.meta.url));
    return await node([program, JSON.stringify(testbed.hosts), String(count)]);
  } finally {
    await testbed.stop();
  }
}

/**
 * The reported figures: delays in milliseconds and the main thread's work, less those of the same process at rest, in which
 * the meter's own timer is most of it; memory in MB.
 */
function figures({ idle, start, steady, memory, servers }) {
  const megabytes = steady.bytes / 1e6;
  const main = Math.max(0, steady.main - (idle.main / idle.seconds) * steady.seconds);
  const added = (key) => Math.max(0, steady.delay[key] - idle.delay[key]);
  return {
    mean: added('mean'),
    p50: added('p50'),
    p99: added('p99'),
    max: added('max'),
    floor: idle.delay,
    startMax: Math.max(0, start.delay.max - idle.delay.max),
    startSeconds: start.seconds,
    utilization: Math.max(0, steady.utilization - idle.utilization),
    restUtilization: idle.utilization,
    throughput: megabytes / steady.seconds,
    chunk: steady.chunks > 0 ? steady.bytes / steady.chunks : null,
    mainPerMb: main / megabytes,
    mainShare: main / (steady.seconds * 1000),
    totalPerMb: (steady.own + steady.helpers) / megabytes,
    memory: (memory.own + memory.helpers) / 1e6,
    serversPerMb: steady.servers / megabytes,
    serverMemory: servers / 1e6,
    collections: steady.collections / steady.seconds,
    collecting: steady.collecting / (steady.seconds * 1000),
  };
}

const chosen = SCENARIOS.filter(({ name, target }) => args.scenario?.includes(name) ?? (target || !args.quick));
/** The contestants. In two rounds that makes 66 runs of some 8 s. */
function participants({ target, unpinned }, round) {
  if (args.client) return args.client;
  if (round > 0 && !target) return [];
  if (unpinned) return [...RIVALS, OPENSSH];
  return args.quick || round > 0 ? RIVALS : Object.keys(CLIENTS);
}

const report = {
  facts: { node: process.version, cpu: cpus()[0]?.model, cpus: cpus().length, quick: args.quick, load: loadavg()[0] },
  scenarios: chosen.map(({ name, title }) => ({ name, title })),
  results: [],
};
mkdirSync(args.out, { recursive: true });
for (let round = 0; round < Number(args.rounds); round++) {
  for (const scenario of chosen) {
    const clients = participants(scenario, round);
    for (const n of clients.keys()) {
      // Each round begins with another one.
      const client = clients[(n + round) % clients.length];
      const result = { scenario: scenario.name, client, round };
      try {
        result.figures = await measure(scenario, client);
        const { mean, p99, utilization, throughput, mainPerMb, totalPerMb, serversPerMb } = result.figures;
        console.error(
          `  ${scenario.name}, ${client}: delay +${mean.toFixed(2)} ms, p99 +${p99.toFixed(2)} ms; busy ${(utilization * 100).toFixed(1)} %; ` +
            `${throughput.toFixed(1)} MB/s; main thread ${mainPerMb.toFixed(3)} ms/MB, ` +
            `all ${totalPerMb.toFixed(2)}, servers ${serversPerMb.toFixed(2)}`,
        );
      } catch (error) {
        result.failure = error.message;
        console.error(`  ${scenario.name}, ${client}: ${error.message}`);
      }
      report.results.push(result);
      writeFileSync(join(args.out, 'event-loop.json'), JSON.stringify(report, null, 2));
    }
  }
}
if (args.scenario?.includes('idle') ?? true) {
  try {
    report.idle = await measureIdle(args.quick ? 200 : 2000);
    const { connections, resident, utilization, cpu } = report.idle;
    console.error(
      `  ${connections} idle hosts: ${(resident / 1e6).toFixed(1)} MB resident, busy ${(utilization * 100).toFixed(2)} %, ${cpu.toFixed(1)} ms of CPU a second`,
    );
  } catch (error) {
    report.idle = { failure: error.message };
    console.error(`  idle hosts: ${error.message}`);
  }
}
writeFileSync(join(args.out, 'event-loop.json'), JSON.stringify(report, null, 2));
writeFileSync(join(args.out, 'event-loop.html'), page(report));
