#!/usr/bin/env node
import { parseArgs } from 'node:util';

import { readConfig } from './config.js';
import { Monitor } from './monitor.js';

const { values } = parseArgs({ options: { config: { type: 'string', default: 'pg-monitor.json' } } });
try {
  const monitor = await Monitor.start(readConfig(values.config));
  console.log(monitor.address);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void monitor.stop());
} catch (error) {
  console.error(`pg-monitor: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
