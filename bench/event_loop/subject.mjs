// The process that is measured: subject.mjs JSON. Connects, measures itself at rest, starts the streams, measures itself
// again, and prints what it found as one line of JSON.

import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { monitorEventLoopDelay, performance, PerformanceObserver } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';

import { CLIENTS } from './clients.mjs';

const { client: name, hosts, command, streams, seconds, floor, pinned, servers } = JSON.parse(process.argv[2]);

/** Objects as a service has them, so that the process is as large and its heap as full. */
function ballast(megabytes) {
  const rows = [];
  // An object of three numbers and a string of its own is about 100 bytes.
  for (let n = 0; n < megabytes * 10_000; n++) rows.push({ n, at: n * 1.5, next: n + 1, text: `row ${n}` });
  return rows;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Nanoseconds that a thread has run (the first number of schedstat; the kernel's sched-stats.rst). */
function ranOf(path) {
  return Number(readFileSync(`${path}/schedstat`, 'utf8').split(' ')[0]);
}

/** Of all threads of a process; one that has just ended is left out. */
function ranOfProcess(pid) {
  let total = 0;
  for (const task of readdirSync(`/proc/${pid}/task`)) {
    try {
      total += ranOf(`/proc/${pid}/task/${task}`);
    } catch (error) {
      if (error.code !== 'ENOENT' && error.code !== 'ESRCH') throw error;
    }
  }
  return total;
}

function residentOf(pid) {
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;
}

/** The sshd processes below the testbed: the commands that they run are the same for every client. */
function serverPids() {
  const parents = new Map();
  for (const pid of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      const [, sshd, parent] = /^\d+ \((sshd)?.*\) \S (\d+)/s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8'));
      parents.set(Number(pid), { sshd: sshd !== undefined, parent: Number(parent) });
    } catch (error) {
      if (error.code !== 'ENOENT' && error.code !== 'ESRCH') throw error;
    }
  }
  const isBelow = (pid) => pid === servers || (parents.has(pid) && isBelow(parents.get(pid).parent));
  return [...parents].filter(([pid, { sshd }]) => sshd && isBelow(pid)).map(([pid]) => pid);
}

let collections = 0;
let collecting = 0;
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) {
    collections++;
    collecting += duration;
  }
}).observe({ entryTypes: ['gc'] });

let bytes = 0;
let chunks = 0;
const take = (chunk) => {
  bytes += chunk.length;
  chunks++;
};

/** Measures from `begin` to `end`. */
class Meter {
  #delay = monitorEventLoopDelay({ resolution: 1 });

  begin(helpers) {
    this.#delay.enable();
    this.#before = this.#now(helpers);
    return this;
  }

  #before;

  #now(helpers) {
    return {
      at: performance.now(),
      loop: performance.eventLoopUtilization(),
      main: ranOf(`/proc/self/task/${process.pid}`),
      own: ranOfProcess('self'),
      helpers: sum(helpers.map(ranOfProcess)),
      servers: sum(serverPids().map(ranOfProcess)),
      bytes: client.arrived ? sum(client.arrived()) : bytes,
      chunks,
      collections,
      collecting,
    };
  }

  end(helpers) {
    this.#delay.disable();
    const now = this.#now(helpers);
    const before = this.#before;
    const of = (key) => now[key] - before[key];
    const ms = (nanoseconds) => nanoseconds / 1e6;
    return {
      seconds: of('at') / 1000,
      delay: {
        mean: ms(this.#delay.mean),
        p50: ms(this.#delay.percentile(50)),
        p99: ms(this.#delay.percentile(99)),
        max: ms(this.#delay.max),
      },
      utilization: performance.eventLoopUtilization(now.loop, before.loop).utilization,
      bytes: of('bytes'),
      chunks: of('chunks'),
      /** CPU time in milliseconds. */
      main: ms(of('main')),
      own: ms(of('own')),
      helpers: ms(of('helpers')),
      servers: ms(of('servers')),
      collections: of('collections'),
      collecting: of('collecting'),
    };
  }
}

/** The main thread alone on CPU 0; every other thread, of this process and of the helpers, on CPU 1. */
function pin(helpers) {
  if (!pinned) return;
  const taskset = (...args) => execFileSync('taskset', args, { stdio: 'ignore' });
  for (const pid of [process.pid, ...helpers]) taskset('-a', '-p', '-c', '1', String(pid));
  taskset('-p', '-c', '0', String(process.pid));
}

const kept = ballast(CLIENTS[name].heap ?? 0);
const client = await CLIENTS[name].open(hosts, { pinned });
pin(client.helpers());

await delay(500);
const rest = new Meter().begin([]);
await delay(floor * 1000);
const idle = rest.end([]);

// How long everything waits while the streams are started, and until the first byte of each has come.
const starting = new Meter().begin([]);
const firsts = Array.from({ length: streams }, (_, n) => {
  return new Promise((resolve) => {
    client.stream(n % hosts.length, command, (chunk) => {
      take(chunk);
      resolve();
    });
  });
});
if (client.arrived) while (!client.arrived().every((count) => count > 0)) await delay(5);
else await Promise.all(firsts);
const start = starting.end([]);

const helpers = client.helpers();
await delay(500);
const running = new Meter().begin(helpers);
await delay(seconds * 1000);
const steady = running.end(helpers);

process.stdout.write(
  `${JSON.stringify({
    idle,
    start,
    steady,
    memory: { own: residentOf('self'), helpers: sum(helpers.map(residentOf)) },
    /** The largest of them: that of a connection. */
    servers: Math.max(...serverPids().map(residentOf)),
    kept: kept.length,
  })}\n`,
  () => {
    client.close?.();
    process.exit();
  },
);
