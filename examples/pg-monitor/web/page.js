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
/** Rows that a group shows when it is opened. */
const PARTS = 50;
/** Seconds of an event loop's line. */
const MINUTE = 60;

/** @type {Map<string, Instance>} */
const instances = new Map();
/** @type {Map<string, HTMLTableRowElement>} */
const hostRows = new Map();
/** @type {Map<string, number[]>} */
const delays = new Map();
/** The groups of rows that are open, by table and what they have in common. @type {Set<string>} */
const opened = new Set();
/** By which column each table is sorted; without an entry, by what needs a person first. @type {Map<string, { column: number, down: boolean }>} */
const sorting = new Map();
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

/** A count: a whole number. @param {number} value */
function whole(value) {
  return Math.round(value).toLocaleString('en');
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
function number(value, shown = whole, alarming = false) {
  if (value === undefined) return cell('–', 'n zero');
  const made = cell(shown(value), `n ${value === 0 ? 'zero' : alarming ? 'alert' : ''}`);
  made.dataset.value = String(value);
  return made;
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

/** The sort key of a cell. @param {HTMLTableRowElement} row @param {number} column @returns {number | string} */
function sortValue(row, column) {
  const cell = row.cells[column];
  const value = cell?.dataset.value;
  return value === undefined ? (cell?.textContent ?? '') : Number(value);
}

/** As the table's head says; rows of which it says nothing stay in their order. @template T @param {string} table @param {T[]} rows @param {(row: T) => HTMLTableRowElement} of */
function sorted(table, rows, of) {
  const order = sorting.get(table);
  if (order === undefined) return rows;
  const compare = (/** @type {number | string} */ a, /** @type {number | string} */ b) =>
    typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  const sign = order.down ? -1 : 1;
  return [...rows].sort((a, b) => sign * compare(sortValue(of(a), order.column), sortValue(of(b), order.column)));
}

/** Fills a table with groups of rows: the first of each is the group's own. @param {string} table @param {HTMLTableRowElement[][]} groups @param {string} nothing */
function fill(table, groups, nothing) {
  const rows = sorted(table, groups, ([first]) => /** @type {HTMLTableRowElement} */ (first)).flat();
  for (const row of rows) label(table, row);
  const body = part(table).querySelector('tbody');
  const focus = body?.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.key : undefined;
  body?.replaceChildren(...(rows.length > 0 ? rows : [make('tr', {}, make('td', { className: 'empty', colSpan: 20 }, nothing))]));
  if (focus !== undefined) /** @type {HTMLElement | null} */ (body?.querySelector(`[data-key="${CSS.escape(focus)}"]`))?.focus();
}

/** Rows that have something in common, as one that opens. @template T @param {T[]} all @param {(one: T) => string} key @returns {[string, T[]][]} */
function grouped(all, key) {
  /** @type {Map<string, T[]>} */
  const groups = new Map();
  for (const one of all) {
    const group = groups.get(key(one));
    if (group === undefined) groups.set(key(one), [one]);
    else group.push(one);
  }
  return [...groups];
}

/** The button that opens and closes a group. @param {string} table @param {string} key @param {string} text @param {() => void} draw */
function groupButton(table, key, text, draw) {
  const id = `${table} ${key}`;
  const button = make('button', { type: 'button', className: 'more' }, text);
  button.dataset.key = id;
  button.setAttribute('aria-expanded', String(opened.has(id)));
  button.addEventListener('click', () => {
    if (!opened.delete(id)) opened.add(id);
    draw();
  });
  return button;
}

/** The hosts of several, in a word or two. @param {{ id: string }[]} all */
function hostsOf(all) {
  const names = new Set(all.map(({ id }) => id));
  return names.size === 1 ? [...names].join() : `${names.size} hosts`;
}

/** Lets a table be sorted by a press on the head of a column. @param {string} table @param {() => void} draw */
function sortable(table, draw) {
  const heads = [...part(table).querySelectorAll('th')];
  heads.forEach((head, column) => {
    const text = head.textContent ?? '';
    if (text === '') return;
    const button = make('button', { type: 'button', className: 'sort', title: `Sort by ${text}` }, text);
    button.addEventListener('click', () => {
      const before = sorting.get(table);
      const first = head.classList.contains('n');
      // The way that is wanted most, then the other one, then the table's own order.
      if (before?.column !== column) sorting.set(table, { column, down: first });
      else if (before.down === first) sorting.set(table, { column, down: !first });
      else sorting.delete(table);
      const now = sorting.get(table);
      heads.forEach((each, n) => {
        if (now?.column === n) each.setAttribute('aria-sort', now.down ? 'descending' : 'ascending');
        else each.removeAttribute('aria-sort');
      });
      draw();
    });
    head.replaceChildren(button);
  });
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
    tile('active backends', whole(sum(({ backends }) => backends.active))),
    tile('waiting for locks', whole(waiting), '', waiting > 0),
    tile('log lines', figure(sum((sample) => sample.logLines)), ' /s'),
    tile('event-loop delay, worst p99', worst.toFixed(1), ' ms'),
    tile(queue.problem ?? `write queue; ${whole(queue.written)} rows stored`, whole(queue.length), queue.dropped > 0 ? ` ${queue.dropped} lost` : '', queue.problem !== null),
  );
}

/** @param {Instance} instance */
function drawHost(instance) {
  const { id, state, problem, sample, history } = instance;
  const name = make('button', { type: 'button', className: 'name', title: 'Show this host only' }, id);
  name.addEventListener('click', () => choose(chosen === id ? null : id));
  const stateCell = make('span', { className: `state ${state}`, title: problem ?? '' }, state);
  const row = /** @type {HTMLTableRowElement} */ (make('tr', { className: `${state} ${id === chosen ? 'chosen' : ''}` }, cell(name)));
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
      number(sample?.waiting, whole, true),
      number(sample?.longestTransaction, seconds),
      sample && sample.cacheHit !== null ? number(sample.cacheHit, (value) => `${(value * 100).toFixed(1)} %`) : cell('–', 'n zero'),
      number(sample?.logLines, figure),
      instance.rtt === null ? cell('–', 'n zero') : number(instance.rtt, (value) => `${value.toFixed(1)} ms`),
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

/** The urgency of a host: the more, the further up. @param {Instance} instance */
function urgency({ state, sample }) {
  if (state === 'down') return Infinity;
  return state === 'connecting' ? 1e6 : (sample?.waiting ?? 0);
}

/** Puts the hosts' rows in their order, if they are not. */
function orderHosts() {
  const byUrgency = [...instances.values()].sort((a, b) => urgency(b) - urgency(a) || a.id.localeCompare(b.id, undefined, { numeric: true }));
  const rows = sorted('hosts', byUrgency.flatMap(({ id }) => hostRows.get(id) ?? []), (row) => row);
  const body = part('hosts').querySelector('tbody');
  if (body === null || body.querySelector('button:active') !== null) return;
  if (rows.every((row, n) => body.rows[n] === row)) return;
  const focus = /** @type {HTMLElement | null} */ (document.activeElement);
  body.replaceChildren(...rows);
  if (focus !== null && body.contains(focus)) focus.focus();
}

/** Hosts that are down stand above all else. */
function drawDown() {
  const down = [...instances.values()].filter(({ state }) => state === 'down');
  const place = part('down');
  place.hidden = down.length === 0;
  const lines = down.slice(0, ROWS).map(({ id, problem }) => make('li', {}, make('b', {}, id), ` ${problem ?? ''}`));
  if (down.length > ROWS) lines.push(make('li', {}, `… and ${down.length - ROWS} more`));
  place.replaceChildren(make('h2', {}, down.length === 1 ? '1 host is down' : `${down.length} hosts are down`), make('ul', {}, ...lines));
}

/**
 * @typedef {{ backend: Backend, wait: Wait | null, also: number[], waiters: Party[] }} Party
 */

/** The waits, from those who hold and do not wait. @param {Wait[]} locks @returns {Party[]} */
function lockTrees(locks) {
  /** @type {Map<number, Party>} */
  const parties = new Map();
  const party = (/** @type {Backend} */ backend) => {
    const found = parties.get(backend.pid);
    if (found !== undefined) return found;
    /** @type {Party} */
    const made = { backend, wait: null, also: [], waiters: [] };
    parties.set(backend.pid, made);
    return made;
  };
  for (const wait of locks) party(wait.waiter).wait = wait;
  for (const { holders } of locks) holders.forEach(party);
  /** Whether one stands above another, on the way to the root. @type {Map<Party, Party>} */
  const above = new Map();
  const isBelow = (/** @type {Party | undefined} */ one, /** @type {Party} */ other) => {
    for (; one !== undefined; one = above.get(one)) if (one === other) return true;
    return false;
  };
  for (const waiter of parties.values()) {
    if (waiter.wait === null) continue;
    const holders = waiter.wait.holders.map(party);
    // Of several, one that waits itself: that shows the chain. In a circle of waits somebody has to be the root.
    const free = holders.filter((holder) => !isBelow(holder, waiter));
    const parent = free.find(({ wait }) => wait !== null) ?? free[0];
    if (parent === undefined) continue;
    above.set(waiter, parent);
    parent.waiters.push(waiter);
    waiter.also = holders.filter((holder) => holder !== parent).map(({ backend }) => backend.pid);
  }
  return [...parties.values()].filter((one) => !above.has(one));
}

/** The longest wait below. @param {Party} party @returns {number} */
function longestWait({ wait, waiters }) {
  return Math.max(wait?.waiter.seconds ?? 0, ...waiters.map(longestWait));
}

/** @param {Party} party @returns {number} */
function waitersBelow({ waiters }) {
  return waiters.reduce((count, waiter) => count + 1 + waitersBelow(waiter), 0);
}

/** @param {string} id @param {Party} party @returns {HTMLElement} */
function drawParty(id, { backend, wait, also, waiters }) {
  const role = make('span', { className: 'role' });
  if (wait === null) role.append('holds it');
  else role.append('waits ', make('span', { className: 'time' }, seconds(wait.waiter.seconds)), ` for ${wait.what}`);
  if (also.length > 0) role.append(`, held by ${also.join(', ')} too`);
  const below = [...waiters].sort((a, b) => b.backend.seconds - a.backend.seconds);
  return make(
    'li',
    {},
    make('div', { className: 'party' }, make('span', {}, `${backend.pid} ${backend.user} (${backend.state}) `, role), stopper(id, backend)),
    code(backend.query),
    ...(below.length > 0 ? [make('ul', {}, ...below.map((waiter) => drawParty(id, waiter)))] : []),
  );
}

function drawLocks() {
  const trees = scope().flatMap(({ id, locks }) => lockTrees(locks).map((tree) => ({ id, tree })));
  trees.sort((a, b) => longestWait(b.tree) - longestWait(a.tree));
  const waiting = trees.reduce((count, { tree }) => count + waitersBelow(tree), 0);
  part('locks-count').textContent = waiting > 0 ? `${waiting} waiting` : '';
  const shown = trees.slice(0, ROWS).map(({ id, tree }) =>
    make(
      'div',
      { className: 'lock' },
      make('h3', {}, make('b', {}, id), ` ${tree.backend.database}: ${waitersBelow(tree)} behind ${tree.backend.pid}, for `, make('span', { className: 'time' }, seconds(longestWait(tree)))),
      make('ul', {}, drawParty(id, tree)),
    ),
  );
  if (trees.length === 0) shown.push(make('p', { className: 'empty' }, 'Nobody waits for a lock.'));
  if (trees.length > ROWS) shown.push(make('p', { className: 'empty' }, `… and ${trees.length - ROWS} more`));
  replaceUnlessHeld('locks', shown);
}

/** Buttons that are being pressed are not taken away. @param {string} id @param {Node[]} children */
function replaceUnlessHeld(id, children) {
  const place = part(id);
  if (place.querySelector('button:active') === null) place.replaceChildren(...children);
}

/** An event's text, without the figure that has a column of its own. @param {Instance['events'][number]} event */
function wordsOf({ message, duration }) {
  return duration === undefined ? message : message.replace(/^duration: [0-9.]+ ms\s*(?:statement: )?/, '');
}

function drawSlow() {
  const events = scope().flatMap(({ id, events }) => events.map((event) => ({ id, ...event })));
  events.sort((a, b) => (a.time < b.time ? 1 : -1));
  /** @param {typeof events[number]} event @param {Node | string} host @param {Node} times @param {number | undefined} worst */
  const row = (event, host, times, worst) => {
    const what = make('td', { className: 'wide' });
    if (event.duration === undefined) what.append(make('span', { className: `severity ${event.severity}` }, event.severity), ' ');
    what.append(code(wordsOf(event)));
    return line(cell(event.time.replace(/^\S+ /, '')), cell(host), times, worst === undefined ? cell('', 'n') : number(worst, milliseconds), what);
  };
  // Statements that differ in their values only are one.
  const kind = (/** @type {typeof events[number]} */ event) => `${event.severity} ${wordsOf(event).replace(/'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b/g, '?')}`;
  const groups = grouped(events, kind).slice(0, ROWS).map(([key, all]) => {
    const [first] = /** @type {[typeof events[number]]} */ (/** @type {unknown} */ (all));
    const durations = all.flatMap(({ duration }) => duration ?? []);
    const worst = durations.length > 0 ? Math.max(...durations) : undefined;
    if (all.length === 1) return [row(first, first.id, number(1), worst)];
    const own = row(first, groupButton('slow', key, hostsOf(all), drawSlow), number(all.length), worst);
    return opened.has(`slow ${key}`) ? [own, ...all.slice(0, PARTS).map((event) => asPart(row(event, event.id, cell('', 'n'), event.duration)))] : [own];
  });
  if (part('slow').querySelector('button:active') === null) fill('slow', groups, 'Nothing slow, and no warnings.');
}

/** @param {HTMLTableRowElement} row */
function asPart(row) {
  row.classList.add('part');
  return row;
}

function drawStatements() {
  const statements = scope().flatMap(({ id, statements }) => statements.map((statement) => ({ id, ...statement })));
  /** @param {Node | string} host @param {Node | string} query @param {typeof statements} all */
  const row = (host, query, all) => {
    const sum = (/** @type {'calls' | 'total' | 'rows'} */ of) => all.reduce((total, one) => total + one[of], 0);
    const [calls, total] = [sum('calls'), sum('total')];
    return line(cell(host), cell(query, 'wide'), number(calls), number(calls > 0 ? total / calls : 0, milliseconds), number(total, milliseconds), number(sum('rows')));
  };
  const total = (/** @type {typeof statements} */ all) => all.reduce((sum, one) => sum + one.total, 0);
  const kinds = grouped(statements, ({ query }) => query).sort(([, a], [, b]) => total(b) - total(a));
  part('statements-count').textContent = kinds.length > 0 ? `· ${kinds.length}` : '';
  const groups = kinds.slice(0, ROWS).map(([query, all]) => {
    if (all.length === 1) return [row(hostsOf(all), code(query), all)];
    const own = row(groupButton('statements', query, hostsOf(all), drawStatements), code(query), all);
    const parts = [...all].sort((a, b) => b.total - a.total).slice(0, PARTS);
    return opened.has(`statements ${query}`) ? [own, ...parts.map((one) => asPart(row(one.id, '', [one])))] : [own];
  });
  if (part('statements').querySelector('button:active') === null) {
    fill('statements', groups, 'No statements yet, or pg_stat_statements is not installed.');
  }
}

function drawRunning() {
  const running = scope().flatMap(({ id, running }) => running.map((backend) => ({ id, backend })));
  running.sort((a, b) => b.backend.seconds - a.backend.seconds);
  part('running-count').textContent = running.length > 0 ? `· ${running.length}` : '';
  const rows = running.slice(0, ROWS).map(({ id, backend }) => [
    line(
      cell(id),
      cell(String(backend.pid), 'n'),
      cell(`${backend.user} ${backend.application}`),
      cell(backend.state),
      number(backend.seconds, seconds),
      cell(code(backend.query), 'wide'),
      cell(stopper(id, backend)),
    ),
  ]);
  if (part('running').querySelector('button:active') === null) fill('running', rows, 'Nobody is.');
}

/** @param {News} news */
function drawLoops({ loops }) {
  const rows = loops.map(({ thread, mean, p99, max, utilization }) => {
    const past = [...(delays.get(thread) ?? []), p99].slice(-MINUTE);
    delays.set(thread, past);
    const delay = (/** @type {number} */ value) => cell(`${value.toFixed(2)} ms`, 'n');
    return [line(
      cell(thread),
      delay(mean),
      delay(p99),
      delay(max),
      cell(`${(utilization * 100).toFixed(1)} %`, 'n'),
      cell(sparkline(past, MINUTE, `p99 of ${thread}`)),
    )];
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
  orderHosts();
  drawDown();
  drawTiles(news);
  drawScope();
  drawLoops(news);
  const link = part('link');
  link.className = '';
  link.textContent = `live, ${new Date(news.time).toLocaleTimeString()}`;
}

sortable('hosts', orderHosts);
sortable('slow', drawSlow);
sortable('statements', drawStatements);
sortable('running', drawRunning);
// A telephone shows what needs a person, and the rest when it is asked for.
if (matchMedia('(max-width: 700px)').matches) for (const section of document.querySelectorAll('details')) section.open = false;

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
