// @ts-check
'use strict';

// The page: state comes by server-sent events, and is drawn as it comes.

/**
 * @typedef {{ pid: number, user: string, database: string, application: string, state: string, query: string,
 *   queryStart: string, seconds: number }} Backend
 * @typedef {{ waiter: Backend, what: string, holders: Backend[] }} Wait
 * @typedef {{ id: string, state: string, problem: string | null, version: string, rtt: number | null,
 *   socket: string | null, log: { file: string, lines: number, malformed: number } | null,
 *   sample: { transactions: number, cacheHit: number | null, logLines: number, waiting: number, longestTransaction: number,
 *     backends: { active: number, idle: number, idleInTransaction: number } } | null,
 *   locks: Wait[], running: Backend[], history: number[],
 *   statements: { query: string, calls: number, mean: number, total: number, rows: number }[],
 *   events: { time: string, severity: string, message: string, user: string, database: string, duration?: number }[] }} Instance
 * @typedef {{ thread: string, mean: number, p99: number, max: number, utilization: number }} Loop
 * @typedef {{ time: number, loops: Loop[], instances: Instance[],
 *   queue: { length: number, written: number, dropped: number, problem: string | null } }} News
 */

/** Rows of a table that is not about one host. */
const ROWS = 15;
/** Seconds of an event loop's line. */
const MINUTE = 60;

/** @type {Map<string, Instance>} */
const instances = new Map();
/** @type {Map<string, HTMLTableRowElement>} */
const hostRows = new Map();
/** @type {Map<string, number[]>} */
const delays = new Map();
/** The host that the lower part is about; null for all. @type {string | null} */
let chosen = null;

/** @param {string} id @returns {HTMLElement} */
function part(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no ${id}`);
  return found;
}

/**
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {(Node | string)[]} children
 */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** @param {string} tag @param {Record<string, string | number>} attributes @param {Element[]} children */
function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A line of what was, from zero to the highest. @param {number[]} values @param {number} room @param {string} title */
function sparkline(values, room, title) {
  const [width, height] = [120, 20];
  const top = Math.max(...values, 1e-9);
  const step = width / (room - 1);
  const begin = width - (values.length - 1) * step;
  const points = values.map((value, n) => `${(begin + n * step).toFixed(1)},${(height - 1 - (value / top) * (height - 3)).toFixed(1)}`);
  const line = points.join(' ');
  return svg(
    'svg',
    { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
    svg('polygon', { points: values.length > 1 ? `${begin.toFixed(1)},${height} ${line} ${width},${height}` : '' }),
    svg('polyline', { points: line }),
  );
}

/** @param {number} value */
function figure(value) {
  if (value >= 10_000) return `${(value / 1000).toFixed(value >= 100_000 ? 0 : 1)}k`;
  return value.toFixed(value > 0 && value < 10 ? 1 : 0);
}

/** @param {number} value */
function milliseconds(value) {
  if (value >= 60_000) return seconds(value / 1000);
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

/** @param {number} value */
function seconds(value) {
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {Node | string} content @param {string} [className] */
function cell(content, className = '') {
  return make('td', { className }, content);
}

/** @param {Node[]} cells */
function line(...cells) {
  return /** @type {HTMLTableRowElement} */ (make('tr', {}, ...cells));
}

/** A number that fades where there is nothing. @param {number | undefined} value @param {(value: number) => string} [shown] @param {boolean} [alarming] */
function number(value, shown = String, alarming = false) {
  if (value === undefined) return cell('–', 'n zero');
  return cell(shown(value), `n ${value === 0 ? 'zero' : alarming ? 'alert' : ''}`);
}

/** @param {string} query */
function code(query) {
  const short = query.replace(/\s+/g, ' ').trim();
  return make('code', { title: query }, short.length > 220 ? `${short.slice(0, 220)} …` : short);
}

/** Lets each cell say which column it is of, for windows in which there are no columns. @param {string} table @param {HTMLTableRowElement} row */
function label(table, row) {
  const titles = part(table).querySelectorAll('th');
  for (const [n, cell] of [...row.cells].entries()) cell.dataset.label = titles[n]?.textContent ?? '';
  return row;
}

/** @param {string} table @param {HTMLTableRowElement[]} rows @param {string} nothing */
function fill(table, rows, nothing) {
  for (const row of rows) label(table, row);
  const body = part(table).querySelector('tbody');
  body?.replaceChildren(...(rows.length > 0 ? rows : [make('tr', {}, make('td', { className: 'empty', colSpan: 20 }, nothing))]));
}

/** @returns {Instance[]} */
function scope() {
  const one = chosen === null ? undefined : instances.get(chosen);
  return one ? [one] : [...instances.values()];
}

// What can be asked for.

/** @param {object} action @param {HTMLButtonElement} button */
async function act(action, button) {
  button.disabled = true;
  try {
    const response = await fetch('act', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(action),
    });
    tell(await response.text(), !response.ok);
  } catch (error) {
    tell(String(error), true);
  } finally {
    button.disabled = false;
  }
}

let hiding = 0;
/** @param {string} text @param {boolean} bad */
function tell(text, bad) {
  const toast = part('toast');
  toast.textContent = text;
  toast.className = bad ? 'shown bad' : 'shown';
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.className = ''), 6000);
}

/** Cancelling ends a statement; a session that holds locks without one must be ended itself. @param {string} instance @param {Backend} backend */
function stopper(instance, backend) {
  const kind = backend.state === 'active' ? 'cancel' : 'terminate';
  const { pid, queryStart } = backend;
  const button = /** @type {HTMLButtonElement} */ (
    make('button', { type: 'button', className: kind === 'terminate' ? 'strong' : '' }, kind === 'cancel' ? 'Cancel query' : 'End session')
  );
  button.dataset.action = kind;
  button.dataset.pid = String(pid);
  button.addEventListener('click', () => void act({ kind, instance, pid, queryStart }, button));
  return button;
}

// What is drawn.

/** @param {News} news */
function drawTiles({ loops, queue }) {
  const all = [...instances.values()];
  const samples = all.flatMap(({ sample }) => sample ?? []);
  const sum = (/** @type {(sample: NonNullable<Instance['sample']>) => number} */ of) => samples.reduce((total, sample) => total + of(sample), 0);
  const up = all.filter(({ state }) => state === 'up').length;
  const waiting = sum((sample) => sample.waiting);
  const worst = Math.max(0, ...loops.map(({ p99 }) => p99));
  const tile = (/** @type {string} */ label, /** @type {string} */ value, unit = '', bad = false) =>
    make('div', { className: bad ? 'tile bad' : 'tile', title: label }, make('b', {}, value, make('span', { className: 'unit' }, unit)), make('small', {}, label));
  part('tiles').replaceChildren(
    tile('hosts up', String(up), ` of ${all.length}`, up < all.length),
    tile('transactions', figure(sum((sample) => sample.transactions)), ' /s'),
    tile('active backends', String(sum(({ backends }) => backends.active))),
    tile('waiting for locks', String(waiting), '', waiting > 0),
    tile('log lines', figure(sum((sample) => sample.logLines)), ' /s'),
    tile('event-loop delay, worst p99', worst.toFixed(1), ' ms'),
    tile(queue.problem ?? `write queue; ${figure(queue.written)} rows stored`, String(queue.length), queue.dropped > 0 ? ` ${queue.dropped} lost` : '', queue.problem !== null),
  );
}

/** @param {Instance} instance */
function drawHost(instance) {
  const { id, state, problem, sample, history } = instance;
  const name = make('button', { type: 'button', className: 'name', title: 'Show this host only' }, id);
  name.addEventListener('click', () => choose(chosen === id ? null : id));
  const stateCell = make('span', { className: `state ${state}`, title: problem ?? '' }, state);
  const row = /** @type {HTMLTableRowElement} */ (make('tr', { className: id === chosen ? 'chosen' : '' }, cell(name)));
  row.dataset.host = id;
  if (state === 'down') {
    stateCell.append(' ', make('span', { className: 'why' }, problem ?? ''));
    row.append(make('td', { colSpan: 11 }, stateCell));
  } else {
    const backends = sample?.backends;
    row.append(
      cell(stateCell),
      cell(sparkline(history, 90, `transactions of ${id}`)),
      number(sample?.transactions, figure),
      number(backends?.active),
      number(backends?.idle),
      number(backends?.idleInTransaction),
      number(sample?.waiting, String, true),
      number(sample?.longestTransaction, seconds),
      sample && sample.cacheHit !== null ? cell(`${(sample.cacheHit * 100).toFixed(1)} %`, 'n') : cell('–', 'n zero'),
      number(sample?.logLines, figure),
      instance.rtt === null ? cell('–', 'n zero') : cell(`${instance.rtt.toFixed(1)} ms`, 'n'),
    );
  }
  label('hosts', row);
  const before = hostRows.get(id);
  if (before === undefined) part('hosts').querySelector('tbody')?.append(row);
  // Whoever is about to press the button keeps it.
  else if (before.contains(document.activeElement)) {
    before.replaceWith(row);
    name.focus();
  } else before.replaceWith(row);
  hostRows.set(id, row);
}

function drawLocks() {
  const locks = scope().flatMap(({ id, locks }) => locks.map((lock) => ({ id, ...lock })));
  locks.sort((a, b) => b.waiter.seconds - a.waiter.seconds);
  part('locks-count').textContent = locks.length > 0 ? `${locks.length} waiting` : '';
  const party = (/** @type {string} */ role, /** @type {string} */ id, /** @type {Backend} */ backend) =>
    make(
      'div',
      { className: 'party' },
      make('span', {}, role),
      make('span', {}, `${backend.pid} ${backend.user} (${backend.state}) `, code(backend.query)),
      stopper(id, backend),
    );
  const shown = locks.slice(0, ROWS).map(({ id, waiter, what, holders }) =>
    make(
      'div',
      { className: 'lock' },
      make('h3', {}, make('b', {}, id), ` ${waiter.database}: ${what}, for `, make('span', { className: 'time' }, seconds(waiter.seconds))),
      party('waits', id, waiter),
      ...holders.map((holder) => party('holds it', id, holder)),
    ),
  );
  if (locks.length === 0) shown.push(make('p', { className: 'empty' }, 'Nobody waits for a lock.'));
  if (locks.length > ROWS) shown.push(make('p', { className: 'empty' }, `… and ${locks.length - ROWS} more`));
  replaceUnlessHeld('locks', shown);
}

/** Buttons that are being pressed are not taken away. @param {string} id @param {Node[]} children */
function replaceUnlessHeld(id, children) {
  const place = part(id);
  if (place.querySelector('button:active') === null) place.replaceChildren(...children);
}

function drawSlow() {
  const events = scope().flatMap(({ id, events }) => events.map((event) => ({ id, ...event })));
  events.sort((a, b) => (a.time < b.time ? 1 : -1));
  const rows = events.slice(0, ROWS).map(({ id, time, severity, message, duration }) => {
    const what = make('td', { className: 'wide' });
    if (duration === undefined) what.append(make('span', { className: `severity ${severity}` }, severity), ' ');
    what.append(code(duration === undefined ? message : message.replace(/^duration: [0-9.]+ ms\s*/, '')));
    return line(cell(time.replace(/^\S+ /, '')), cell(id), cell(duration === undefined ? '' : milliseconds(duration), 'n'), what);
  });
  fill('slow', rows, 'Nothing slow, and no warnings.');
}

function drawStatements() {
  const statements = scope().flatMap(({ id, statements }) => statements.map((statement) => ({ id, ...statement })));
  statements.sort((a, b) => b.total - a.total);
  const rows = statements.slice(0, ROWS).map(({ id, query, calls, mean, total, rows }) =>
    line(cell(id), cell(code(query), 'wide'), number(calls, figure), number(mean, milliseconds), number(total, milliseconds), number(rows, figure)),
  );
  fill('statements', rows, 'No statements yet, or pg_stat_statements is not installed.');
}

function drawRunning() {
  const running = scope().flatMap(({ id, running }) => running.map((backend) => ({ id, backend })));
  running.sort((a, b) => b.backend.seconds - a.backend.seconds);
  const rows = running.slice(0, ROWS).map(({ id, backend }) =>
    line(
      cell(id),
      cell(String(backend.pid), 'n'),
      cell(`${backend.user} ${backend.application}`),
      cell(backend.state),
      number(backend.seconds, seconds),
      cell(code(backend.query), 'wide'),
      cell(stopper(id, backend)),
    ),
  );
  if (part('running').querySelector('button:active') === null) fill('running', rows, 'Nobody is.');
}

/** @param {News} news */
function drawLoops({ loops }) {
  const rows = loops.map(({ thread, mean, p99, max, utilization }) => {
    const past = [...(delays.get(thread) ?? []), p99].slice(-MINUTE);
    delays.set(thread, past);
    const delay = (/** @type {number} */ value) => cell(`${value.toFixed(2)} ms`, 'n');
    return line(
      cell(thread),
      delay(mean),
      delay(p99),
      delay(max),
      cell(`${(utilization * 100).toFixed(1)} %`, 'n'),
      cell(sparkline(past, MINUTE, `p99 of ${thread}`)),
    );
  });
  fill('loops', rows, 'Not measured yet.');
}

/** @param {string | null} id */
function choose(id) {
  const before = chosen;
  chosen = id;
  for (const changed of [before, id]) {
    const instance = changed === null ? undefined : instances.get(changed);
    if (instance) drawHost(instance);
  }
  drawScope();
}

function drawScope() {
  const one = chosen === null ? undefined : instances.get(chosen);
  const text = one
    ? [one.id, one.version && `PostgreSQL ${one.version}`, one.socket && `psql -h ${one.socket}`, one.log?.file].filter(Boolean).join(' · ')
    : 'All hosts. Press a name above to see one.';
  const children = [make('span', {}, text)];
  if (one) {
    const all = make('button', { type: 'button' }, 'All hosts');
    all.addEventListener('click', () => choose(null));
    children.push(all);
  }
  part('scope').replaceChildren(...children);
  part('reset').hidden = one === undefined;
  drawLocks();
  drawSlow();
  drawStatements();
  drawRunning();
}

/** @param {News} news */
function take(news) {
  for (const instance of news.instances) instances.set(instance.id, instance);
  news.instances.forEach(drawHost);
  drawTiles(news);
  drawScope();
  drawLoops(news);
  const link = part('link');
  link.className = '';
  link.textContent = `live, ${new Date(news.time).toLocaleTimeString()}`;
}

part('reset').addEventListener('click', (event) => {
  const button = /** @type {HTMLButtonElement} */ (event.currentTarget);
  if (chosen !== null) void act({ kind: 'reset', instance: chosen }, button);
});

const source = new EventSource('events');
source.addEventListener('all', ({ data }) => {
  // The monitor may have been started with other hosts since.
  instances.clear();
  hostRows.clear();
  part('hosts').querySelector('tbody')?.replaceChildren();
  take(JSON.parse(data));
});
source.addEventListener('some', ({ data }) => take(JSON.parse(data)));
source.addEventListener('error', () => {
  const link = part('link');
  link.className = 'lost';
  link.textContent = 'The monitor does not answer; trying again …';
});
