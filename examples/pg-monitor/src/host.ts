// One server: its connection, made again whenever it is lost, and the databases behind it.

import { readFile } from 'node:fs/promises';

import { connect, type ConnectConfig, type DestinationConfig } from 'trunkline';

import type { HostConfig, SshConfig } from './config.js';
import { Instance, pause } from './instance.js';
import { instanceId, type Action, type InstanceReport, type WorkerSettings } from './messages.js';

/** Milliseconds before a lost connection is made again: doubled with each failure in a row. */
const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 60_000;

export class Host {
  readonly instances: Map<string, Instance>;

  constructor(
    private readonly config: HostConfig,
    settings: WorkerSettings,
  ) {
    this.instances = new Map(
      config.instances.map((instance) => {
        const id = instanceId(config, instance);
        return [id, new Instance(id, instance, settings)];
      }),
    );
  }

  /** Keeps the connection, until the signal comes. */
  async run(signal: AbortSignal): Promise<void> {
    let wait = FIRST_PAUSE;
    while (!signal.aborted) {
      try {
        const connection = await connect(await reach(this.config.name, this.config.ssh));
        wait = FIRST_PAUSE;
        const over = new AbortController();
        const close = () => void connection.close();
        signal.addEventListener('abort', close, { once: true });
        if (signal.aborted) close();
        void connection.closed.then(() => {
          over.abort();
        });
        const runs = [...this.instances.values()].map((instance) => instance.run(connection, over.signal));
        const [lost] = await Promise.all([connection.closed, ...runs]);
        signal.removeEventListener('abort', close);
        if (!signal.aborted) throw lost ?? new Error('the server has closed the connection');
      } catch (error) {
        for (const instance of this.instances.values()) instance.down(error);
        // Hosts that were lost together do not come back together.
        await pause(wait * (0.5 + Math.random()), signal);
        wait = Math.min(wait * 2, LONGEST_PAUSE);
      }
    }
  }

  reports(): InstanceReport[] {
    return [...this.instances.values()].flatMap((instance) => instance.report() ?? []);
  }

  act(action: Action): Promise<string> | undefined {
    return this.instances.get(action.instance)?.act(action);
  }
}

/** Milliseconds between signs of life that a server is asked for. */
const KEEPALIVE = 15_000;

/** The options of connect(). */
async function reach(name: string, ssh: SshConfig): Promise<ConnectConfig | DestinationConfig> {
  const { host, config, daemon, keyFile, knownHosts, ...rest } = ssh;
  if (host !== undefined) {
    return defined<ConnectConfig>({
      ...rest,
      host,
      knownHosts,
      keepaliveInterval: KEEPALIVE,
      privateKey: keyFile && (await readFile(keyFile)),
    });
  }
  const options = defined({ IdentityFile: keyFile, UserKnownHostsFile: knownHosts, ServerAliveInterval: KEEPALIVE / 1000 });
  return defined<DestinationConfig>({ ...rest, destination: name, config, daemon, options });
}

/** Without what is undefined. */
function defined<T extends object>(values: { [Key in keyof T]: T[Key] | undefined }): T {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as T;
}
