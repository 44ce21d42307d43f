// Prometheus.

import { collectDefaultMetrics, Counter, Gauge, Registry } from 'prom-client';

import type { Fleet, InstanceView } from './fleet.js';
import type { Store } from './store.js';

/** The content of /metrics, read from the fleet at each request. */
export function metrics(fleet: Fleet, store: Store): Registry {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });

  const ofInstances = (name: string, help: string, value: (view: InstanceView) => number | null | undefined): void => {
    new Gauge({
      name,
      help,
      registers,
      labelNames: ['instance'],
      collect() {
        this.reset();
        for (const view of fleet.instances.values()) {
          const figure = value(view);
          if (figure !== null && figure !== undefined) this.set({ instance: view.id }, figure);
        }
      },
    });
  };
  ofInstances('pg_monitor_up', 'Whether the last poll succeeded', ({ state }) => (state === 'up' ? 1 : 0));
  ofInstances('pg_monitor_rtt_seconds', 'Round-trip time of the SSH connection', ({ rtt }) => rtt && rtt / 1000);
  ofInstances('pg_monitor_poll_seconds', 'How long the queries of a poll took', ({ sample }) => sample && sample.pollTime / 1000);
  ofInstances('pg_monitor_transactions_per_second', 'Commits and rollbacks', ({ sample }) => sample?.transactions);
  ofInstances('pg_monitor_rollbacks_per_second', 'Rollbacks', ({ sample }) => sample?.rollbacks);
  ofInstances('pg_monitor_cache_hit_ratio', 'Blocks found in memory', ({ sample }) => sample?.cacheHit);
  ofInstances('pg_monitor_waiting', 'Sessions that wait for a lock', ({ sample }) => sample?.waiting);
  ofInstances('pg_monitor_longest_transaction_seconds', 'The oldest transaction', ({ sample }) => sample?.longestTransaction);

  new Gauge({
    name: 'pg_monitor_backends',
    help: 'Sessions of clients',
    registers,
    labelNames: ['instance', 'state'],
    collect() {
      this.reset();
      for (const { id, sample } of fleet.instances.values()) {
        for (const [state, count] of Object.entries(sample?.backends ?? {})) this.set({ instance: id, state }, count);
      }
    },
  });

  // Totals of the monitor's own: they only grow.
  const lines = new Counter({
    name: 'pg_monitor_log_lines_total',
    help: 'Records of the log',
    registers,
    labelNames: ['instance'],
  });
  const bytes = new Counter({ name: 'pg_monitor_log_bytes_total', help: 'Bytes of the log', registers, labelNames: ['instance'] });
  const seen = new Map<string, { file: string; lines: number; bytes: number }>();
  fleet.on('report', ({ id: instance, log }) => {
    if (log === null) return;
    const before = seen.get(instance);
    const base = before?.file === log.file ? before : { lines: 0, bytes: 0 };
    lines.inc({ instance }, log.lines - base.lines);
    bytes.inc({ instance }, log.bytes - base.bytes);
    seen.set(instance, log);
  });

  new Gauge({
    name: 'pg_monitor_event_loop_delay_seconds',
    help: 'Delay of the event loop over the last second',
    registers,
    labelNames: ['thread', 'figure'],
    collect() {
      for (const { thread, mean, p99, max } of fleet.loops()) {
        for (const [figure, value] of Object.entries({ mean, p99, max })) this.set({ thread, figure }, value / 1000);
      }
    },
  });
  new Gauge({
    name: 'pg_monitor_write_queue_length',
    help: 'Rows that wait to be stored',
    registers,
    collect() {
      this.set(store.state.length);
    },
  });
  for (const [what, help] of [['written', 'Rows stored'], ['dropped', 'Rows that a full queue has lost']] as const) {
    new Gauge({
      name: `pg_monitor_rows_${what}`,
      help,
      registers,
      collect() {
        this.set(store.state[what]);
      },
    });
  }
  return registry;
}
