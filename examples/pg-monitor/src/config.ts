// The file that says what is watched.

import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { resolve, dirname } from 'node:path';

import { z } from 'zod';

/**
 * The connection options of a server. Without `host`, its name is a destination of ssh_config: what one would type behind `ssh`. With it,
 * ssh_config has no say.
 */
const Ssh = z.strictObject({
  host: z.string().optional(),
  /** The ssh_config file, instead of the user's. */
  config: z.string().optional(),
  /** Whether connections are those of trunkline's daemon; "auto": where one runs. */
  daemon: z.union([z.boolean(), z.literal('auto')]).optional(),
  port: z.int().min(1).max(65535).optional(),
  username: z.string().optional(),
  keyFile: z.string().optional(),
  agent: z.string().optional(),
  knownHosts: z.string().optional(),
});

/** A PostgreSQL server on a host, as seen from there. */
const Instance = z.strictObject({
  address: z.string().default('127.0.0.1'),
  port: z.int().min(1).max(65535).default(5432),
  /** A Unix socket of the host, in place of address and port. */
  socket: z.string().optional(),
  user: z.string().default('monitor'),
  /** Without it, ~/.pgpass or PGPASSWORD. */
  password: z.string().optional(),
  /** The database of pg_stat_statements, where statistics are reset. */
  database: z.string().default('postgres'),
});

const Host = z.union([
  z.string().min(1),
  z.strictObject({
    name: z.string().min(1),
    ssh: Ssh.optional(),
    instances: z.array(Instance.partial()).min(1).optional(),
  }),
]);

const File = z.strictObject({
  listen: z.string().default('127.0.0.1:8017'),
  /** Seconds from one poll to the next. */
  interval: z.number().min(0.2).default(2),
  /** Milliseconds from which on a statement in the log is slow. */
  slow: z.number().nonnegative().default(100),
  workers: z.int().min(1).optional(),
  sockets: z.string().optional(),
  samples: z.string().default('samples.db'),
  keepDays: z.number().positive().default(7),
  defaults: z.strictObject({ ssh: Ssh.optional(), instance: Instance.partial().optional() }).default({}),
  hosts: z.array(Host).min(1),
});

export type SshConfig = z.infer<typeof Ssh>;
export type InstanceConfig = z.infer<typeof Instance>;

export interface HostConfig {
  name: string;
  ssh: SshConfig;
  instances: InstanceConfig[];
}

export interface Config {
  address: string;
  port: number;
  interval: number;
  slow: number;
  workers: number;
  /** A directory that is made. */
  sockets: string | null;
  /** SQLite's file. */
  samples: string;
  keepDays: number;
  hosts: HostConfig[];
}

/** Reads the file; what it says of paths is meant from its directory. */
export function readConfig(path: string): Config {
  try {
    return parseConfig(JSON.parse(readFileSync(path, 'utf8')), dirname(resolve(path)));
  } catch (error) {
    const reason = error instanceof z.ZodError ? z.prettifyError(error) : String(error);
    throw new Error(`${path} cannot be used: ${reason}`, { cause: error });
  }
}

export function parseConfig(value: unknown, directory: string): Config {
  const file = File.parse(value);
  const colon = file.listen.lastIndexOf(':');
  const hosts = file.hosts.map((entry): HostConfig => {
    const host = typeof entry === 'string' ? { name: entry } : entry;
    const ssh = { ...file.defaults.ssh, ...host.ssh };
    for (const key of ['config', 'keyFile', 'knownHosts'] as const) {
      if (ssh[key] !== undefined) ssh[key] = resolve(directory, ssh[key]);
    }
    return {
      name: host.name,
      ssh,
      instances: (host.instances ?? [{}]).map((instance) => Instance.parse({ ...file.defaults.instance, ...instance })),
    };
  });
  const twice = hosts.find((host, n) => hosts.findIndex((other) => other.name === host.name) < n);
  if (twice !== undefined) throw new Error(`two hosts are called ${twice.name}`);
  return {
    address: file.listen.slice(0, Math.max(colon, 0)),
    port: Number(file.listen.slice(colon + 1)),
    interval: file.interval,
    slow: file.slow,
    workers: Math.min(file.workers ?? Math.max(1, availableParallelism() - 1), hosts.length),
    sockets: file.sockets === undefined ? null : resolve(directory, file.sockets),
    samples: resolve(directory, file.samples),
    keepDays: file.keepDays,
    hosts,
  };
}
