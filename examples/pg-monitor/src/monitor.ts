// The parts, put together.

import type { Config } from './config.js';
import { Fleet } from './fleet.js';
import { metrics } from './metrics.js';
import { Store, type Row } from './store.js';
import { Web } from './web.js';

export class Monitor {
  private constructor(
    /** The address of the page. */
    readonly address: string,
    readonly fleet: Fleet,
    private readonly store: Store,
    private readonly web: Web,
  ) {}

  static async start(config: Config): Promise<Monitor> {
    const store = await Store.open(config.samples, config.keepDays);
    const fleet = new Fleet(config);
    const stored = new Map<string, number>();
    fleet.on('report', ({ id: instance, sample, events }) => {
      const time = Date.now();
      const rows: Row[] = events.map((event) => ({ table: 'events', instance, time, event }));
      if (sample !== null && sample.time !== stored.get(instance)) {
        stored.set(instance, sample.time);
        rows.push({ table: 'samples', instance, sample });
      }
      if (rows.length > 0) store.push(rows);
    });
    const web = new Web(config, fleet, store, metrics(fleet, store));
    return new Monitor(await web.listen(config.port), fleet, store, web);
  }

  /** Ends connections and threads; what waits is stored first. */
  async stop(): Promise<void> {
    await this.web.close();
    await this.fleet.stop();
    await this.store.close();
  }
}
