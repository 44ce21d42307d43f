// A worker thread: some of the hosts.

import { setMaxListeners } from 'node:events';
import { parentPort, workerData } from 'node:worker_threads';

import { Host } from './host.js';
import { LoopMeter } from './loop.js';
import type { FromWorker, ToWorker, WorkerStart } from './messages.js';

/** Milliseconds from one report to the next. */
const REPORTS = 1_000;

const port = parentPort;
if (port === null) throw new Error('this is the program of a worker thread');
const { name, hosts: configs, settings } = workerData as WorkerStart;

const tell = (message: FromWorker) => {
  port.postMessage(message);
};
const meter = new LoopMeter(name);
const stop = new AbortController();
// Each host listens.
setMaxListeners(0, stop.signal);
const hosts = configs.map((config) => new Host(config, settings));
const runs = hosts.map((host) => host.run(stop.signal));
const timer = setInterval(() => {
  tell({ kind: 'reports', reports: hosts.flatMap((host) => host.reports()), loop: meter.read() });
}, REPORTS);

async function act({ request, action }: Extract<ToWorker, { kind: 'act' }>): Promise<void> {
  try {
    const host = hosts.find(({ instances }) => instances.has(action.instance));
    if (host === undefined) throw new Error(`there is no ${action.instance}`);
    tell({ kind: 'answer', request, text: (await host.act(action)) ?? '' });
  } catch (error) {
    tell({ kind: 'refusal', request, text: error instanceof Error ? error.message : String(error) });
  }
}

port.on('message', (message: ToWorker) => {
  if (message.kind === 'act') {
    void act(message);
    return;
  }
  stop.abort();
  clearInterval(timer);
  void Promise.all(runs).then(() => {
    port.close();
  });
});
