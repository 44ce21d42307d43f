// The page alone, with news that need no servers.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

import { chromium, type Browser, type Page } from 'playwright-core';

const WEB = new URL('../../web/', import.meta.url);
const FILES: Record<string, [string, string]> = {
  '/': ['index.html', 'text/html'],
  '/page.css': ['page.css', 'text/css'],
  '/page.js': ['page.js', 'text/javascript'],
};

const backend = (pid: number, state: string, query: string, seconds: number) => ({
  pid,
  user: 'app',
  database: 'shop',
  application: 'psql',
  state,
  query,
  queryStart: '2026-11-23',
  seconds,
});

/** Twenty hosts with the same statements: one is down, on one sessions wait for each other. */
function news() {
  const [root, middle, leaf] = [
    backend(1, 'idle in transaction', 'UPDATE a', 95),
    backend(2, 'active', 'UPDATE b', 62),
    backend(3, 'active', "SELECT '<b id=injected>'", 12),
  ];
  const locks = [
    { waiter: middle, what: 'transactionid', holders: [root] },
    { waiter: leaf, what: 'relation a', holders: [root, middle] },
  ];
  const instances = Array.from({ length: 20 }, (_, n) => {
    const [isDown, waits] = [n === 6, n === 12];
    return {
      id: `db${n + 1}`,
      state: isDown ? 'down' : 'up',
      problem: isDown ? 'connection refused' : null,
      version: '15.8',
      rtt: n,
      socket: null,
      log: null,
      sample: isDown
        ? null
        : {
            transactions: 100 + n,
            cacheHit: 0.99,
            logLines: 1,
            waiting: waits ? 2 : 0,
            longestTransaction: 1,
            backends: { active: 1, idle: 1, idleInTransaction: 0 },
          },
      locks: waits ? locks : [],
      running: [],
      history: [1, 2, 3],
      statements: isDown
        ? []
        : [
            { query: 'SELECT 1', calls: 1000 + n, mean: 2, total: 2 * (1000 + n), rows: 10 },
            { query: 'SELECT 2', calls: 10, mean: 0.5, total: 5, rows: 10 },
          ],
      events: [
        { time: `2026-11-23 08:00:${10 + n} UTC`, severity: 'LOG', message: `duration: 800 ms  statement: SELECT ${n}`, user: 'app', database: 'shop', duration: 800 + n },
      ],
    };
  });
  return { time: 0, loops: [], queue: { length: 0, written: 1234567, dropped: 0, problem: null }, instances };
}

describe('the page', () => {
  let server: Server;
  let browser: Browser;
  let page: Page;
  let address: string;
  const complaints: string[] = [];

  before(async () => {
    server = createServer((request, response) => {
      const path = (request.url ?? '/').split('?')[0] ?? '/';
      const file = FILES[path];
      if (path === '/events') {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(`event: all\ndata: ${JSON.stringify(news())}\n\n`);
      } else if (file !== undefined) {
        response.writeHead(200, { 'content-type': file[1] });
        response.end(readFileSync(new URL(file[0], WEB)));
      } else response.writeHead(404).end();
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    browser = await chromium.launch({ executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
    page = await browser.newPage({ viewport: { width: 1300, height: 900 } });
    page.on('pageerror', (error) => complaints.push(String(error)));
    await page.goto(address);
    await page.locator('#hosts tr[data-host="db20"]').waitFor();
  });

  after(async () => {
    await browser.close();
    server.closeAllConnections();
    server.close();
  });

  const column = (table: string, n: number) => page.locator(`#${table} tbody tr td:nth-child(${n})`).allTextContents();

  test('what needs a person comes first', async () => {
    assert.match((await page.locator('#down').textContent()) ?? '', /1 host is down.*db7.*connection refused/);
    assert.deepEqual((await column('hosts', 1)).slice(0, 4), ['db7', 'db13', 'db1', 'db2']);
    const order = await page.evaluate<string[]>(`[...document.querySelectorAll('main > *')].map(({ id, innerText }) => id || innerText.split(/\\s/)[0])`);
    assert.deepEqual(order.slice(0, 5), ['tiles', 'down', 'Locks', 'Slow', 'Hosts']);
  });

  test('who waits for whom is a tree', async () => {
    const lock = page.locator('.lock');
    assert.equal(await lock.count(), 1);
    const pids = await lock.locator('li li li .party').allTextContents();
    assert.match(pids.join(), /^3 app \(active\) waits 12 s for relation a, held by 1 too/);
    assert.equal(await lock.locator('li').count(), 3);
    assert.match((await lock.locator('h3').textContent()) ?? '', /db13 shop: 2 behind 1, for 1 min 2 s/);
    assert.equal(await page.locator('#injected').count(), 0);
  });

  test('a statement of many hosts is one row that opens', async () => {
    assert.deepEqual(await column('statements', 1), ['19 hosts', '19 hosts']);
    // A thousand and some of each host; whole numbers.
    assert.equal((await column('statements', 3))[0], '19,184');
    assert.equal((await column('statements', 4))[0], '2.0 ms');
    await page.locator('#statements').getByRole('button', { name: '19 hosts' }).first().click();
    const opened = await column('statements', 1);
    assert.equal(opened.length, 21);
    assert.equal(opened[1], 'db20');
    await page.locator('#statements').getByRole('button', { name: '19 hosts' }).first().click();
    assert.equal((await column('statements', 1)).length, 2);
    // In the log, too: only values differ.
    assert.deepEqual(await column('slow', 2), ['20 hosts']);
    assert.deepEqual(await column('slow', 4), ['819 ms']);
    await page.locator('#tiles').getByText('1,234,567 rows stored').waitFor();
  });

  test('tables sort by any column, and back', async () => {
    const head = page.locator('#hosts').getByRole('button', { name: 'RTT' });
    await head.click();
    assert.deepEqual((await column('hosts', 1)).slice(0, 2), ['db20', 'db19']);
    assert.equal(await page.locator('#hosts th[aria-sort="descending"]').textContent(), 'RTT');
    await head.click();
    assert.equal((await column('hosts', 12)).filter(Boolean)[0], '0.0 ms');
    await head.click();
    assert.equal((await column('hosts', 1))[0], 'db7');
    await page.locator('#statements').getByRole('button', { name: 'calls' }).click();
    await page.locator('#statements').getByRole('button', { name: 'calls' }).click();
    assert.equal((await column('statements', 3))[0], '190');
  });

  test('on a telephone summaries come first, and the page is short', async () => {
    const small = await browser.newPage({ viewport: { width: 390, height: 844 } });
    await small.goto(address);
    await small.locator('#hosts tr[data-host="db20"]').waitFor();
    const [height, width] = await small.evaluate<[number, number]>('[document.documentElement.scrollHeight, document.documentElement.scrollWidth]');
    assert.ok(height < 3000, `${height} pixels`);
    assert.equal(width, 390);
    assert.equal(await small.locator('#statements tbody').isVisible(), false);
    await small.getByText('Statements').click();
    await small.locator('#statements').getByText('SELECT 1').waitFor();
    assert.equal(await small.locator('tr[data-host="db1"] td').nth(11).isVisible(), false);
    await small.getByRole('button', { name: 'db1', exact: true }).click();
    await small.locator('tr[data-host="db1"] td').nth(11).waitFor();
    await small.close();
  });

  test('nothing went wrong in it', () => {
    assert.deepEqual(complaints, []);
  });
});
