// PostgreSQL servers of one's own, in a directory that goes with them.

import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { randomBytes } from 'node:crypto';

import pg from 'pg';

import type { LogState } from '../messages.js';

const run = promisify(execFile);

/** Another program may have taken a free port by the time that PostgreSQL asks for it. */
const ATTEMPTS = 5;

/** The directory of Debian's initdb and pg_ctl: in the newest version's directory, or anywhere in the PATH. */
function program(name: string): string {
  try {
    const versions = readdirSync('/usr/lib/postgresql').sort((a, b) => Number(a) - Number(b));
    const newest = versions.at(-1);
    return newest === undefined ? name : `/usr/lib/postgresql/${newest}/bin/${name}`;
  } catch {
    return name;
  }
}

export class Database {
  readonly user = 'postgres';
  readonly password = randomBytes(12).toString('hex');
  port = 0;
  #directory = mkdtempSync(join(tmpdir(), 'pg-monitor-db-'));
  #owner: { uid?: number; gid?: number } = {};
  #load: ChildProcess | null = null;

  private constructor(private readonly format: LogState['format']) {}

  /** Starts one, with a role `monitor` (of the same password) that may do what the monitor does. */
  static async start(format: LogState['format']): Promise<Database> {
    const database = new Database(format);
    try {
      await database.#start();
    } catch (error) {
      await database.stop();
      throw error;
    }
    return database;
  }

  /** A session of the superuser, or of another role: `app` may change the table `accounts`. */
  async connect(user = this.user): Promise<pg.Client> {
    const { port, password } = this;
    const client = new pg.Client({ host: '127.0.0.1', port, user, password, database: 'postgres' });
    await client.connect();
    return client;
  }

  /** Keeps it busy: so many transactions a second, until it stops. */
  async load(transactions: number): Promise<void> {
    const { port, user, password } = this;
    const env = { ...process.env, PGPASSWORD: password };
    const server = ['--host=127.0.0.1', `--port=${port}`, `--username=${user}`];
    await run(program('pgbench'), [...server, '--initialize', '--quiet', '--scale=1', 'postgres'], { env });
    const work = ['--client=4', '--time=1000000', `--rate=${transactions}`, '--no-vacuum', '--builtin=tpcb-like'];
    this.#load = spawn(program('pgbench'), [...server, ...work, 'postgres'], { env, stdio: 'ignore' });
  }

  /** Ends it, with what it has stored. */
  async stop(): Promise<void> {
    if (this.#load !== null && this.#load.exitCode === null) {
      const ended = once(this.#load, 'exit');
      this.#load.kill();
      await ended;
      this.#load = null;
    }
    if (this.port !== 0) await this.#run('pg_ctl', '--mode=immediate', 'stop');
    this.port = 0;
    rmSync(this.#directory, { recursive: true, force: true });
  }

  async #start(): Promise<void> {
    if (process.getuid?.() === 0) {
      // PostgreSQL does not run as root.
      const id = async (option: string) => Number((await run('id', [option, 'postgres'])).stdout);
      this.#owner = { uid: await id('-u'), gid: await id('-g') };
      chownSync(this.#directory, this.#owner.uid ?? 0, this.#owner.gid ?? 0);
    }
    const passwordFile = join(this.#directory, 'password');
    await writeFile(passwordFile, this.password);
    if (this.#owner.uid !== undefined) chownSync(passwordFile, this.#owner.uid, this.#owner.gid ?? 0);
    const data = join(this.#directory, 'data');
    const account = [`--username=${this.user}`, '--auth=scram-sha-256', `--pwfile=${passwordFile}`];
    await this.#run('initdb', '--no-sync', '--no-instructions', '--encoding=UTF8', '--locale=C', ...account);
    const settings = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      shared_preload_libraries: 'pg_stat_statements',
      logging_collector: 'on',
      log_destination: this.format,
      log_timezone: 'UTC',
      log_min_duration_statement: '100ms',
      log_lock_waits: 'on',
      log_connections: 'on',
      log_statement: 'mod',
      deadlock_timeout: '500ms',
      max_connections: '200',
      fsync: 'off',
    };
    const lines = Object.entries(settings).map(([name, value]) => `${name} = '${value}'\n`);
    await writeFile(join(data, 'postgresql.auto.conf'), lines.join(''));
    for (let attempt = 1; this.port === 0; attempt++) {
      const port = await freePort();
      try {
        await this.#run('pg_ctl', '--wait', `--log=${join(this.#directory, 'startup.log')}`, `--options=-p ${port}`, 'start');
        this.port = port;
      } catch (error) {
        if (attempt === ATTEMPTS) throw error;
      }
    }
    const client = await this.connect();
    await client.query(`
      CREATE EXTENSION pg_stat_statements;
      CREATE ROLE monitor LOGIN PASSWORD '${this.password}' IN ROLE pg_monitor, pg_signal_backend;
      GRANT EXECUTE ON FUNCTION pg_stat_reset(), pg_stat_statements_reset(oid, oid, bigint), pg_current_logfile(text) TO monitor;
      CREATE ROLE app LOGIN PASSWORD '${this.password}';
      CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);
      INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 10) AS n;
      GRANT ALL ON accounts TO app;`);
    await client.end();
  }

  /** A program of PostgreSQL's, as the user that may run it. The server would keep whatever stream it was given. */
  async #run(name: string, ...args: string[]): Promise<void> {
    const child = spawn(program(name), [`--pgdata=${join(this.#directory, 'data')}`, ...args], {
      ...this.#owner,
      cwd: this.#directory,
      stdio: 'ignore',
    });
    const [code] = (await once(child, 'exit')) as [number | null];
    if (code !== 0) throw new Error(`${name} ${args.join(' ')} ended with ${code ?? 'a signal'}`);
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
