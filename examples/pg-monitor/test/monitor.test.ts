// The whole of it: real databases behind real SSH servers, and the page in a real browser.

import assert from 'node:assert/strict';
import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';

import sqlite from 'node-sqlite3-wasm';
import { chromium, type Browser, type Page } from 'playwright-core';

import { parseConfig } from '../src/config.js';
import { Database } from '../src/demo/databases.js';
import { Servers } from '../src/demo/servers.js';
import { Monitor } from '../src/monitor.js';

/** Debian's path; the other flags keep it from asking for anything in the internet. */
const CHROMIUM = {
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
};

describe('a monitor of three hosts with two databases', () => {
  const directory = mkdtempSync(join(tmpdir(), 'pg-monitor-test-'));
  let databases: [Database, Database];
  let servers: Servers;
  let monitor: Monitor;
  let browser: Browser;
  let page: Page;
  /** The browser's complaints. */
  const complaints: string[] = [];

  before(async () => {
    [databases, servers] = await Promise.all([
      Promise.all([Database.start('jsonlog'), Database.start('csvlog')]),
      Servers.start(3),
    ]);
    await databases[0].load(20);
    const instances = databases.map(({ port, password }) => [{ port, password }]);
    const hosts = [
      { name: 'shop', ssh: servers.ssh[0], instances: instances[0] },
      { name: 'stock', ssh: servers.ssh[1], instances: instances[1] },
      // As ssh_config has it.
      { name: servers.aliases[2], ssh: { config: servers.config, daemon: false }, instances: instances[0] },
    ];
    const config = { listen: '127.0.0.1:0', interval: 0.5, workers: 2, sockets: 'sockets', hosts };
    monitor = await Monitor.start(parseConfig(config, directory));
    browser = await chromium.launch(CHROMIUM);
    page = await browser.newPage();
    page.setDefaultTimeout(20_000);
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()));
    await page.goto(monitor.address);
  });

  after(async () => {
    await browser.close();
    await monitor.stop();
    await servers.stop();
    await Promise.all(databases.map((database) => database.stop()));
    await rm(directory, { recursive: true });
  });

  /** The cells of a host's row. */
  const cells = (host: string) => page.locator(`#hosts tr[data-host="${host}"] td`);

  test('the page shows every host, each over its own connection', async () => {
    for (const host of ['shop', 'stock', 'box3']) await cells(host).nth(1).getByText('up').waitFor();
    await page.locator('#tiles').getByText('3 of 3').waitFor();
  });

  test('rates move with the load', async () => {
    const [rate, logLines] = [cells('shop').nth(3), cells('shop').nth(10)];
    await rate.filter({ hasText: /^([5-9]|\d\d)/ }).waitFor();
    const before = (await rate.textContent()) ?? '';
    await rate.filter({ hasNotText: before }).waitFor();
    await logLines.filter({ hasText: /^([5-9]|\d\d)/ }).waitFor();
    const points = await page.locator('tr[data-host="shop"] polyline').getAttribute('points');
    await page.locator(`tr[data-host="shop"] polyline:not([points="${String(points)}"])`).waitFor({ state: 'attached' });
    await page.locator('#statements').getByText('pgbench_accounts').first().waitFor();
  });

  test('slow queries come from jsonlog and from csvlog', async () => {
    for (const [n, host] of ['shop', 'stock'].entries()) {
      const client = await databases[n === 0 ? 0 : 1].connect();
      await client.query(`SELECT pg_sleep(0.15), 'a "quoted",\n text' AS of_${host}`);
      await client.end();
      await page.locator('#slow tr', { hasText: host }).getByText(`'a "quoted", text' AS of_${host}`).first().waitFor();
    }
  });

  test('in a narrow window nothing is cut off, and figures have names', async () => {
    const before = page.viewportSize();
    assert.ok(before);
    const overhanging = () => page.evaluate<string[]>(`[...document.querySelectorAll('main *')]
      .filter((element) => element.getBoundingClientRect().right > document.documentElement.clientWidth)
      .map(({ outerHTML }) => outerHTML.slice(0, 100))`);
    for (const width of [320, 400, 1000]) {
      await page.setViewportSize({ width, height: 900 });
      assert.deepEqual(await overhanging(), [], `at ${width} pixels`);
    }
    assert.equal(await cells('shop').nth(10).getAttribute('data-label'), 'log lines/s');
    await page.setViewportSize(before);
  });

  test('a lock appears with both sides, and goes when the waiting query is cancelled', async () => {
    const [holder, waiter] = [await databases[1].connect('app'), await databases[1].connect('app')];
    await holder.query('BEGIN');
    await holder.query('UPDATE accounts SET balance = 1 WHERE id = 1');
    const waiting = assert.rejects(waiter.query('UPDATE accounts SET balance = 2 WHERE id = 1'), { code: '57014' });
    const lock = page.locator('.lock', { hasText: 'stock' });
    await lock.getByText('SET balance = 2').waitFor();
    await lock.getByText('SET balance = 1').waitFor();
    assert.equal(await cells('stock').nth(7).textContent(), '1');

    await lock.getByRole('button', { name: 'Cancel query' }).click();
    await page.locator('#toast').getByText('was told').waitFor();
    await waiting;
    await lock.waitFor({ state: 'detached' });
    await waiter.end();
    await holder.query('COMMIT');
    await holder.end();
  });

  test('a session that holds a lock and does nothing can be ended', async () => {
    const [holder, waiter] = [await databases[1].connect('app'), await databases[1].connect('app')];
    const ended = new Promise<Error & { code?: string }>((resolve) => holder.on('error', resolve));
    await holder.query('BEGIN');
    await holder.query('UPDATE accounts SET balance = 3 WHERE id = 2');
    const waiting = waiter.query('UPDATE accounts SET balance = 4 WHERE id = 2');
    await page.locator('.lock', { hasText: 'stock' }).getByRole('button', { name: 'End session' }).click();
    assert.equal((await ended).code, '57P01');
    assert.equal((await waiting).rowCount, 1);
    await waiter.end();
  });

  test('what has gone on to something else is left alone', async () => {
    const client = await databases[1].connect();
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    const action = { kind: 'terminate', instance: 'stock', pid: rows[0]?.pid ?? 0, queryStart: '2020-01-01 00:00:00+00' } as const;
    assert.match(await monitor.fleet.act(action), /nothing was done/);
    assert.equal((await client.query('SELECT 1')).rowCount, 1);
    await client.end();
  });

  test('statistics are reset', async () => {
    const client = await databases[1].connect();
    await client.query('SELECT count(*) AS before_the_reset FROM accounts');
    const count = async () => {
      const text = `SELECT count(*)::int AS count FROM pg_stat_statements WHERE query LIKE '%before_the_reset%accounts'`;
      return (await client.query<{ count: number }>(text)).rows[0]?.count;
    };
    assert.equal(await count(), 1);
    await page.getByRole('button', { name: 'stock', exact: true }).click();
    await page.getByRole('button', { name: 'Reset statistics' }).click();
    await page.locator('#toast').getByText('were reset').waitFor();
    assert.equal(await count(), 0);
    await client.end();
    await page.getByRole('button', { name: 'All hosts' }).click();
  });

  test('Prometheus finds hosts, event loops and the write queue', async () => {
    const text = await (await fetch(`${monitor.address}metrics`)).text();
    for (const line of [
      /^pg_monitor_up\{instance="shop"\} 1$/m,
      /^pg_monitor_transactions_per_second\{instance="shop"\} [0-9.]+$/m,
      /^pg_monitor_log_lines_total\{instance="stock"\} [1-9]/m,
      /^pg_monitor_event_loop_delay_seconds\{thread="worker 1",figure="p99"\} [0-9.e-]+$/m,
      /^pg_monitor_write_queue_length \d+$/m,
      /^nodejs_version_info/m,
    ]) assert.match(text, line);
  });

  test('other sites can neither ask for anything nor read it', async () => {
    const body = JSON.stringify({ kind: 'reset', instance: 'stock' });
    const plain = await fetch(`${monitor.address}act`, { method: 'POST', body });
    assert.equal(plain.status, 415);
    const status = await new Promise((resolve, reject) => {
      const asked = request(`${monitor.address}events`, { headers: { host: 'evil.example' } }, ({ statusCode }) => resolve(statusCode));
      asked.on('error', reject).end();
    });
    assert.equal(status, 403);
    const unknown = await fetch(`${monitor.address}act`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ kind: 'reset', instance: 'nobody' }),
    });
    assert.equal(unknown.status, 502);
    assert.match(await unknown.text(), /there is no nobody/);
  });

  test('a database that goes is told with its reason, and the others stay', async () => {
    await databases[1].stop();
    await cells('stock').nth(1).getByText('down').waitFor();
    await page.locator('#tiles').getByText('2 of 3').waitFor();
    assert.match((await cells('stock').nth(1).textContent()) ?? '', /refused|terminat|ended|shut/i);
  });

  /** Reads what the monitor has stored, at a moment when it does not write. */
  async function stored(query: string) {
    const patience = Date.now() + 60_000;
    for (;;) {
      const database = new sqlite.Database(join(directory, 'samples.db'), { readOnly: true });
      try {
        return database.all(query);
      } catch (error) {
        if (!String(error).includes('locked') || Date.now() > patience) throw error;
      } finally {
        database.close();
      }
      await setTimeout(20);
    }
  }

  test('samples and events are stored, and nothing went wrong in the page', async () => {
    assert.deepEqual(complaints, []);
    await page.locator('#tiles').getByText('rows stored').waitFor();
    const samples = await stored('SELECT instance, count(*) AS count, max(transactions) AS best FROM samples GROUP BY 1 ORDER BY 1');
    const slow = await stored("SELECT DISTINCT instance FROM events WHERE duration > 100 AND message LIKE '%of_stock%' ORDER BY 1");
    assert.deepEqual(samples.map((row) => row['instance']), ['box3', 'shop', 'stock']);
    assert.ok(Number(samples[0]?.['best']) > 5);
    assert.deepEqual(slow, [{ instance: 'stock' }]);
  });
});
