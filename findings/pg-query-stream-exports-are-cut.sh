#!/usr/bin/env bash
# pg-query-stream: a stream whose connection ends in the middle gives no error, and an export that is cut ends with 0.
#
# Seen with: pg-query-stream 4.17.0, pg-cursor 2.22.1, pg 8.23.1, Node 20; PGlite 0.5.14 as the server.
#
# When a tunnel or a server goes, query() and a cursor's read() reject. The stream is destroyed with that error, too, but
# its _destroy() closes the cursor first, and Cursor.close() waits for a ReadyForQuery message, which cannot come any more.
# So neither "error" nor "end" is emitted. Only the client's own "error" event tells of the loss.
#
# Why it matters: nothing is left that keeps Node running, so an export whose code has a catch for each error ends with
# status 0 and a file that is cut. Emit "error" on the stream from the client's "error" listener.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps @electric-sql/pglite@0.5.14 \
    @electric-sql/pglite-socket@0.2.17 pg@8.23.1 pg-cursor@2.22.1 pg-query-stream@4.17.0 >npm.log 2>&1 ||
    { cat npm.log >&2; exit 1; }

cat >export.mjs <<'JS'
import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import pg from 'pg';
import Cursor from 'pg-cursor';
import QueryStream from 'pg-query-stream';

const [kind, port, limit] = process.argv.slice(2);
const sql = 'SELECT generate_series(1, $1)';

async function read(client) {
  if (kind === 'query') return (await client.query(sql, [limit])).rows.length;
  if (kind === 'stream') {
    const lines = async function* (rows) { for await (const row of rows) yield `${row.generate_series}\n`; };
    await pipeline(client.query(new QueryStream(sql, [limit])), lines, createWriteStream('export.csv'));
    return 'all';
  }
  const cursor = client.query(new Cursor(sql, [limit]));
  let count = 0;
  try {
    for (let rows; (rows = await cursor.read(100)).length;) count += rows.length;
  } catch (error) {
    console.log(`    read(): ${error.message}`);
    throw error;
  }
  return count;
}

async function main() {
  const client = new pg.Client({ host: '127.0.0.1', port, user: 'postgres', database: 'postgres' });
  client.on('error', (error) => console.log(`    client: ${error.message}`));
  await client.connect();
  console.log(`    ${await read(client)} rows`);
  await client.end();
}

main().catch((error) => {
  console.log(`    caught: ${error.message}`);
  process.exitCode = 1;
});
JS
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { PGlite } from '@electric-sql/pglite';
import { PGLiteSocketServer } from '@electric-sql/pglite-socket';

const server = new PGLiteSocketServer({ db: await PGlite.create(), host: '127.0.0.1', port: 0 });
server.addEventListener('listening', async ({ detail: { port } }) => {
  let limit;
  const tunnel = net.createServer((near) => { // It ends after so many bytes of answers.
    const far = net.connect(port, '127.0.0.1');
    near.pipe(far);
    far.on('data', (data) => {
      if (far.bytesRead < limit) return near.write(data);
      near.end();
      return far.destroy();
    });
    near.on('error', () => {});
    near.on('close', () => far.destroy());
  }).listen(0, '127.0.0.1');
  await once(tunnel, 'listening');
  for (const [kind, bytes] of [['stream', 1e9], ['query', 1e5], ['cursor', 1e5], ['stream', 1e5]]) {
    limit = bytes;
    console.log(`${kind}, ${bytes < 1e9 ? 'the tunnel ends' : 'the tunnel stays'}`);
    const program = spawn('node', ['export.mjs', kind, tunnel.address().port, 20000], { stdio: ['ignore', 'pipe', 'inherit'] });
    program.stdout.pipe(process.stdout, { end: false });
    const [status] = await once(program, 'close');
    console.log(`    status ${status}`);
    if (kind === 'stream') {
      const lines = readFileSync('export.csv', 'utf8').split('\n').length - 1;
      console.log(`    the file has ${lines === 20000 ? 'all' : 'some of the'} lines`);
    }
  }
  process.exit();
});
await server.start();
JS
timeout 200 node run.mjs >actual

cat >expected <<'END'
stream, the tunnel stays
    all rows
    status 0
    the file has all lines
query, the tunnel ends
    client: Connection terminated unexpectedly
    caught: Connection terminated unexpectedly
    status 1
cursor, the tunnel ends
    client: Connection terminated unexpectedly
    read(): Connection terminated unexpectedly
    caught: Connection terminated unexpectedly
    status 1
stream, the tunnel ends
    client: Connection terminated unexpectedly
    status 0
    the file has some of the lines
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
