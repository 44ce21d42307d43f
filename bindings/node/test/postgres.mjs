// A PostgreSQL server for a test, whose database is new.

import { execFileSync, spawnSync } from 'node:child_process';
import { chownSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The directory of Debian's initdb and pg_ctl: in the newest version's directory. */
const programs = join('/usr/lib/postgresql', readdirSync('/usr/lib/postgresql').sort((a, b) => a - b).at(-1), 'bin');

/**
 * Starts one that lasts until the test has ended; returns its port.
 * @param {import('node:test').TestContext} t
 */
export async function postgres(t) {
  const directory = mkdtempSync(join(tmpdir(), 'pg-'));
  const owner = {};
  if (process.getuid() === 0) {
    // PostgreSQL does not run as root.
    for (const [name, option] of [['uid', '-u'], ['gid', '-g']]) owner[name] = Number(execFileSync('id', [option, 'postgres']));
    chownSync(directory, owner.uid, owner.gid);
  }
  const run = (name, ...args) => {
    const { status } = spawnSync(join(programs, name), [`--pgdata=${join(directory, 'data')}`, ...args], { ...owner, cwd: directory, stdio: 'ignore' });
    if (status !== 0) throw new Error(`${name} ended with ${status}`);
  };
  run('initdb', '--no-sync', '--no-instructions', '--encoding=UTF8', '--locale=C', '--username=postgres', '--auth=trust');
  const settings = ['listen_addresses=', `unix_socket_directories=${directory}`, 'fsync=off'].map((setting) => `-c ${setting}`);
  run('pg_ctl', '--wait', `--log=${join(directory, 'log')}`, `--options=${settings.join(' ')}`, 'start');
  t.after(() => {
    run('pg_ctl', '--mode=immediate', 'stop');
    rmSync(directory, { recursive: true });
  });
  // PostgreSQL takes no port 0.
  const server = createServer((socket) => {
    const inner = connect(join(directory, '.s.PGSQL.5432'));
    for (const [from, to] of [[socket, inner], [inner, socket]]) from.on('error', () => to.destroy()).pipe(to);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  return server.address().port;
}
