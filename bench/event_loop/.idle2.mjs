// Many connected hosts with a `tail -F` each that says nothing, in one process: idle.mjs SERVERS COUNT. Prints one line of
// JSON: resident bytes, the event loop's utilization, CPU time in milliseconds a second.

import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';

import { connect } from 'trunkline';

/** Handshakes at a time. */
const AT_ONCE = 8;
/** Seconds. */
const SETTLE = 5;
const WATCH = 10;

const servers = JSON.parse(process.argv[2]);
const count = Number(process.argv[3]);
const keys = new Map(servers.map(({ key }) => [key, readFileSync(key)]));
const connections = [];

/** Each address of 127.0.0.0/8 is a host of its own. */
async function open(n) {
  const { port, user, key } = servers[n % servers.length];
  const host = `127.0.${1 + (n >> 8)}.${n & 255}`;
  const connection = await connect({ host, port, username: user, privateKey: keys.get(key), knownHosts: false });
  // As many tails on one machine would exhaust its inotify instances and look at their files once a second; a minute will do.
  const stream = connection.stream('echo ready; exec tail -n 0 -s 60 -F /dev/null 2>&1');
  await once(stream, 'data');
  stream.on('data', () => undefined);
  connections.push(connection);
}

let next = 0;
await Promise.all(
  Array.from({ length: AT_ONCE }, async () => {
    while (next < count) await open(next++);
  }),
);

await delay(SETTLE * 1000);
const loop = performance.eventLoopUtilization();
const cpu = process.cpuUsage();
await delay(WATCH * 1000);
const { utilization } = performance.eventLoopUtilization(performance.eventLoopUtilization(), loop);
const { user, system } = process.cpuUsage(cpu);
const { rss: resident, heapTotal: heap, external } = process.memoryUsage();
import("node:fs").then(({readFileSync:r})=>process.stderr.write(r("/proc/self/smaps_rollup","utf8").match(/Anonymous:.*|Rss.*|Private_Dirty.*/g).join(" ")+"\n"+Object.entries(r("/proc/self/smaps","utf8").split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).reduce((a,b)=>{const h=b.split("\n")[0].split(/ +/);const k=h[5]?h[5].replace(/.*\//,""):(parseInt(h[0].split("-")[0],16)%(64<<20)===0||true?"anon":"");a[k]=(a[k]||0)+Number(/Rss: +(\d+)/.exec(b)[1]);return a},{})).filter(([k,v])=>v>500).map(x=>x.join("=")).join(" ")+"\n"));await delay(300);process.stdout.write(
  `${JSON.stringify({ connections: connections.length, resident, heap, external, utilization, cpu: (user + system) / 1000 / WATCH })}\n`,
  () => process.exit(),
);
