// The page, its events, what it can ask for, and /metrics.

import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';

import type { Registry } from 'prom-client';
import { z } from 'zod';

import type { Config } from './config.js';
import type { Fleet, InstanceView } from './fleet.js';
import type { Store } from './store.js';

/** Milliseconds from one event to the next. */
const TICK = 1_000;
/** Bytes that may wait for a page that does not read; then it is cut off, and comes back by itself. */
const BACKLOG = 8 * 1024 * 1024;
const LONGEST_REQUEST = 64 * 1024;

const Wanted = z.union([
  z.strictObject({
    kind: z.enum(['cancel', 'terminate']),
    instance: z.string(),
    pid: z.int(),
    queryStart: z.string(),
  }),
  z.strictObject({ kind: z.literal('reset'), instance: z.string() }),
]);

/** From dist/src to what lies beside it in the package. */
const FILES = new Map(
  [
    ['/', 'index.html', 'text/html; charset=utf-8'],
    ['/page.css', 'page.css', 'text/css'],
    ['/page.js', 'page.js', 'text/javascript'],
  ].map(([path = '', file = '', type = '']) => [path, { type, content: readFileSync(new URL(`../../web/${file}`, import.meta.url)) }]),
);

export class Web {
  #server: Server;
  #pages = new Set<ServerResponse>();
  #changed = new Set<string>();
  #timer: NodeJS.Timeout;
  #address: string;

  constructor(
    config: Config,
    private readonly fleet: Fleet,
    private readonly store: Store,
    private readonly registry: Registry,
  ) {
    this.#address = config.address;
    this.#server = createServer((request, response) => {
      this.#handle(request, response).catch((error: unknown) => {
        answer(response, 500, error instanceof Error ? error.message : String(error));
      });
    });
    this.fleet.on('report', ({ id }) => this.#changed.add(id));
    this.#timer = setInterval(() => {
      this.#tick();
    }, TICK);
  }

  /** Listens, and says where. */
  async listen(port: number): Promise<string> {
    this.#server.listen(port, this.#address);
    await once(this.#server, 'listening');
    const { address, family, port: actual } = this.#server.address() as AddressInfo;
    return `http://${family === 'IPv6' ? `[${address}]` : address}:${actual}/`;
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    for (const page of this.#pages) page.end();
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // A name that somebody else points at this machine is not a way in (DNS rebinding).
    if (!isLocalName(request.headers.host ?? '', this.#address)) {
      answer(response, 403, 'This name is not served.');
      return;
    }
    const path = (request.url ?? '/').split('?')[0] ?? '/';
    const file = FILES.get(path);
    if (request.method === 'GET' && file !== undefined) {
      response.writeHead(200, {
        'content-type': file.type,
        'content-security-policy': "default-src 'self'; img-src data:",
        'cache-control': 'no-cache',
      });
      response.end(file.content);
    } else if (request.method === 'GET' && path === '/events') {
      this.#welcome(request, response);
    } else if (request.method === 'GET' && path === '/metrics') {
      const text = await this.registry.metrics();
      response.writeHead(200, { 'content-type': this.registry.contentType });
      response.end(text);
    } else if (request.method === 'POST' && path === '/act') {
      await this.#act(request, response);
    } else {
      answer(response, 404, 'There is no such page.');
    }
  }

  async #act(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // Other sites cannot send this type without asking first (CORS), and nobody answers them.
    if (request.headers['content-type'] !== 'application/json') {
      answer(response, 415, 'Only application/json.');
      return;
    }
    let body = '';
    for await (const chunk of request.setEncoding('utf8') as AsyncIterable<string>) {
      body += chunk;
      if (body.length > LONGEST_REQUEST) break;
    }
    let value: unknown;
    try {
      value = JSON.parse(body);
    } catch {
      answer(response, 400, 'This is no JSON.');
      return;
    }
    const wanted = Wanted.safeParse(value);
    if (!wanted.success) {
      answer(response, 400, z.prettifyError(wanted.error));
      return;
    }
    try {
      answer(response, 200, await this.fleet.act(wanted.data));
    } catch (error) {
      answer(response, 502, error instanceof Error ? error.message : String(error));
    }
  }

  #welcome(request: IncomingMessage, response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
    this.#pages.add(response);
    request.on('close', () => this.#pages.delete(response));
    send(response, 'all', this.#news([...this.fleet.instances.values()]));
  }

  #tick(): void {
    const changed = [...this.#changed].flatMap((id) => this.fleet.instances.get(id) ?? []);
    this.#changed.clear();
    if (this.#pages.size === 0) return;
    const news = this.#news(changed);
    for (const page of this.#pages) {
      if (page.writableLength > BACKLOG) page.destroy();
      else send(page, 'some', news);
    }
  }

  #news(instances: InstanceView[]): string {
    return JSON.stringify({ time: Date.now(), loops: this.fleet.loops(), queue: this.store.state, instances });
  }
}

function send(page: ServerResponse, event: string, data: string): void {
  page.write(`event: ${event}\ndata: ${data}\n\n`);
}

function answer(response: ServerResponse, status: number, text: string): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' });
  response.end(text);
}

/** Whether a Host header is an address, a name of this machine's own, or what was asked to be listened on. */
function isLocalName(host: string, listen: string): boolean {
  const name = host.replace(/:\d+$/, '');
  return name === 'localhost' || name === listen || /^(\d+\.){3}\d+$|^\[.*\]$/.test(name);
}
