// How long an event loop keeps things waiting.

import { monitorEventLoopDelay, performance } from 'node:perf_hooks';

import type { LoopDelay } from './messages.js';

/** Milliseconds. The timer behind the histogram is due so often, and what comes on top of it is the delay. */
const RESOLUTION = 10;

/** Measures the loop of the thread it is made in. */
export class LoopMeter {
  #histogram = monitorEventLoopDelay({ resolution: RESOLUTION });
  #utilization = performance.eventLoopUtilization();

  constructor(private readonly thread: string) {
    this.#histogram.enable();
  }

  /** Since it was asked last. */
  read(): LoopDelay {
    const milliseconds = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION);
    const { mean, max } = this.#histogram;
    const p99 = this.#histogram.percentile(99);
    const now = performance.eventLoopUtilization();
    const { utilization } = performance.eventLoopUtilization(now, this.#utilization);
    this.#utilization = now;
    this.#histogram.reset();
    return {
      thread: this.thread,
      // Of an empty histogram, the mean is not a number.
      mean: milliseconds(Number.isFinite(mean) ? mean : 0),
      p99: milliseconds(p99),
      max: milliseconds(max),
      utilization,
    };
  }
}
