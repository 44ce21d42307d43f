// SSH servers of one's own, from trunkline's test programs.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import type { SshConfig } from '../config.js';

/** From dist/src/demo to the repository. */
const REPOSITORY = fileURLToPath(new URL('../../../../../', import.meta.url));
const PROGRAM = join(process.env['CARGO_TARGET_DIR'] ?? join(REPOSITORY, 'target'), 'debug', 'trunkline-testbed');

interface TestbedHost {
  address: string;
  port: number;
  user: string;
  key: string;
  known_hosts: string;
}

export class Servers {
  private constructor(
    private readonly child: ChildProcess,
    /** The connection options of each without ssh_config. */
    readonly ssh: SshConfig[],
    /** An ssh_config with all of them, and their names in it. */
    readonly config: string,
    readonly aliases: string[],
  ) {}

  static async start(count: number): Promise<Servers> {
    if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is missing: cargo build -p trunkline-testkit --bins`);
    const child = spawn(PROGRAM, ['--servers', String(count)], { stdio: ['pipe', 'pipe', 'inherit'] });
    const line = once(createInterface(child.stdout), 'line') as Promise<[string]>;
    const failed = once(child, 'exit').then(([code]) => {
      throw new Error(`trunkline-testbed ended with ${String(code)}`);
    });
    const [text] = await Promise.race([line, failed]);
    failed.catch(() => undefined);
    const { hosts, ssh_config, aliases } = JSON.parse(text) as { hosts: TestbedHost[]; ssh_config: string; aliases: string[] };
    const ssh = hosts.map(({ address, port, user, key, known_hosts }) => {
      return { host: address, port, username: user, keyFile: key, knownHosts: known_hosts };
    });
    return new Servers(child, ssh, ssh_config, aliases);
  }

  /** They end with their standard input. */
  async stop(): Promise<void> {
    const ended = once(this.child, 'exit');
    this.child.stdin?.end();
    await ended;
  }
}
