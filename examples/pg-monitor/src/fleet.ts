// All instances, as the worker threads tell of them.

import { EventEmitter, once } from 'node:events';
import { Worker } from 'node:worker_threads';

import type { Config } from './config.js';
import { LoopMeter } from './loop.js';
import type { Action, FromWorker, InstanceReport, LogEvent, LoopDelay, ToWorker, WorkerStart } from './messages.js';
import { instanceId, unknownInstance } from './messages.js';

/** Samples of an instance that a page is given to begin with. */
const HISTORY = 90;
/** Events of an instance that are kept for the page. */
const EVENTS = 50;

/** An instance, and what it was. */
export interface InstanceView extends InstanceReport {
  /** Transactions a second, oldest first. */
  history: number[];
}

interface FleetEvents {
  report: [InstanceReport];
}

interface Pending {
  resolve: (text: string) => void;
  reject: (error: Error) => void;
}

/** The workers, and what is known from them. */
export class Fleet extends EventEmitter<FleetEvents> {
  readonly instances = new Map<string, InstanceView>();
  #workers: Worker[] = [];
  #loops = new Map<string, LoopDelay>();
  #timer: NodeJS.Timeout;
  #owner = new Map<string, Worker>();
  #pending = new Map<number, Pending>();
  #requests = 0;

  /** Starts the workers, each with its part of the hosts. */
  constructor(config: Config) {
    super();
    const meter = new LoopMeter('main');
    this.#timer = setInterval(() => this.#loops.set('main', meter.read()), 1000);
    const settings = { interval: config.interval, slow: config.slow, sockets: config.sockets };
    for (let n = 0; n < config.workers; n++) {
      const hosts = config.hosts.filter((_, index) => index % config.workers === n);
      const start: WorkerStart = { name: `worker ${n + 1}`, hosts, settings };
      const worker = new Worker(new URL('./worker.js', import.meta.url), { workerData: start });
      worker.on('message', (message: FromWorker) => {
        this.#told(message);
      });
      this.#workers.push(worker);
      for (const host of hosts) {
        for (const instance of host.instances) {
          const id = instanceId(host, instance);
          this.#owner.set(id, worker);
          this.instances.set(id, unseen(id));
        }
      }
    }
  }

  /** The event loops of all threads, over their last second. */
  loops(): LoopDelay[] {
    return [...this.#loops.values()].sort((a, b) => a.thread.localeCompare(b.thread));
  }

  /** Asks the worker that has the instance; resolves to what was done, in words. */
  act(action: Action): Promise<string> {
    const worker = this.#owner.get(action.instance);
    if (worker === undefined) return Promise.reject(new Error(`there is no ${action.instance}`));
    const request = ++this.#requests;
    return new Promise((resolve, reject) => {
      this.#pending.set(request, { resolve, reject });
      worker.postMessage({ kind: 'act', request, action } satisfies ToWorker);
    });
  }

  /** Ends all connections and threads. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(
      this.#workers.map(async (worker) => {
        const ended = once(worker, 'exit');
        worker.postMessage({ kind: 'stop' } satisfies ToWorker);
        await ended;
      }),
    );
  }

  #told(message: FromWorker): void {
    if (message.kind === 'reports') {
      this.#loops.set(message.loop.thread, message.loop);
      for (const report of message.reports) this.#reported(report);
      return;
    }
    const pending = this.#pending.get(message.request);
    this.#pending.delete(message.request);
    if (message.kind === 'answer') pending?.resolve(message.text);
    else pending?.reject(new Error(message.text));
  }

  #reported(report: InstanceReport): void {
    const before = this.instances.get(report.id) ?? unseen(report.id);
    const isNew = report.sample !== null && report.sample.time !== before.sample?.time;
    const history = isNew && report.sample ? [...before.history, report.sample.transactions].slice(-HISTORY) : before.history;
    const events: LogEvent[] = [...before.events, ...report.events].slice(-EVENTS);
    this.instances.set(report.id, { ...report, events, history });
    this.emit('report', report);
  }
}

function unseen(id: string): InstanceView {
  return { ...unknownInstance(id), history: [] };
}
