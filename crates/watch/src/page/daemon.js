// The daemon's updates, put together and shown.

const HISTORY = 120;
const hosts = new Map();
const activities = new Map();
let failures = [];
let starts = { warm: { counts: [] }, cold: { counts: [] } };
let pulse = null;
let at = 0;
let before = 0;
const rates = { sent: [], received: [] };

const seconds = (time) => time.secs + time.nanos / 1e9;

function bytes(count) {
  let value = count;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (value < 999.5) return `${unit === 'B' || value >= 9.95 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(0)} PiB`;
}

function update(told) {
  at = seconds(told.at);
  for (const report of told.hosts) {
    const moved = [sum(report.connections, (c) => c.sent), sum(report.connections, (c) => c.received)];
    const known = hosts.get(report.sharing);
    hosts.set(report.sharing, { report, moved, before: known?.before ?? moved, sent: 0, received: 0 });
  }
  for (const sharing of told.hosts_gone) hosts.delete(sharing);
  for (const activity of told.activities) {
    const known = activities.get(activity.id);
    activities.set(activity.id, { ...activity, seen: known?.seen, rate: known?.rate ?? 0 });
  }
  for (const id of told.activities_gone) activities.delete(id);
  failures = [...failures, ...told.failures].slice(-100);
  if (told.starts) starts = told.starts;
  if (!told.pulse) return;
  pulse = told.pulse;
  endMoment();
  show();
}

function endMoment() {
  const took = at - before;
  before = at;
  const rate = (was, is) => (took > 0 ? Math.max(0, is - was) / took : 0);
  for (const host of hosts.values()) {
    host.sent = rate(host.before[0], host.moved[0]);
    host.received = rate(host.before[1], host.moved[1]);
    host.before = host.moved;
  }
  for (const activity of activities.values()) {
    if (!activity.transfer) continue;
    const [when, had] = activity.seen ?? [at, activity.transfer.bytes];
    if (at > when) activity.rate = Math.max(0, activity.transfer.bytes - had) / (at - when);
    activity.seen = [at, activity.transfer.bytes];
  }
  const all = [...hosts.values()];
  for (const way of ['sent', 'received']) {
    rates[way].push(sum(all, (host) => host[way]));
    if (rates[way].length > HISTORY) rates[way].shift();
  }
}

function stateOf({ report }) {
  const { connections, master, pinned } = report;
  if (master) return master.state;
  if (connections.length === 0) return pinned ? 'pinned' : 'listening';
  if (connections.every((c) => c.handshake === null)) return 'connecting';
  if (connections.every((c) => c.closing)) return 'closing';
  if (connections.some((c) => c.silent)) return 'silent';
  if (connections.some((c) => c.busy)) return 'busy';
  if (connections.some((c) => c.sessions + c.tunnels > 0)) return 'used';
  return pinned ? 'pinned' : 'warm';
}

const rttOf = ({ report }) => report.connections.reduce((least, c) => (c.rtt !== null && (least === null || c.rtt < least) ? c.rtt : least), null);
const sessionsOf = ({ report }) => sum(report.connections, (c) => c.sessions) + (report.master?.sessions ?? 0);
const tunnelsOf = ({ report }) => sum(report.connections, (c) => c.tunnels);

function show() {
  const memory = pulse.memory === null ? '' : `, ${bytes(pulse.memory)} of memory`;
  $('#daemon').textContent = `Daemon ${pulse.pid}${memory}, ${pulse.descriptors} of ${pulse.descriptor_limit ?? 'any number of'} descriptors`;
  showTiles();
  showCopies();
  showFailures();
  showLatencies();
  showSessions();
  showHosts();
  document.body.dataset.moment = String(Number(document.body.dataset.moment ?? 0) + 1);
}

function curve(values) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', `0 0 ${HISTORY - 1} 20`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  const most = Math.max(1, ...values);
  const points = values.map((value, n) => `${HISTORY - values.length + n},${(19 - (18 * value) / most).toFixed(1)}`);
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', `M${HISTORY - values.length},20 L${points.join(' L')} L${HISTORY - 1},20`);
  svg.append(path);
  return svg;
}

function showTiles() {
  const all = [...hosts.values()];
  const connected = all.filter(({ report }) => report.connections.length > 0 || report.master);
  const last = (values) => values[values.length - 1] ?? 0;
  const tiles = [
    [connected.length, 'hosts'],
    [sum(all, ({ report }) => report.connections.length), 'connections'],
    [sum(all, sessionsOf), 'sessions'],
    [sum(all, tunnelsOf), 'tunnels'],
    [`${bytes(last(rates.sent))}/s`, 'sent', curve(rates.sent)],
    [`${bytes(last(rates.received))}/s`, 'received', curve(rates.received)],
  ];
  $('#tiles').replaceChildren(...tiles.map(([value, name, ...more]) => element('div', { className: 'tile' }, element('b', { text: String(value) }), element('span', { className: 'faint', text: name }), ...more)));
}

function showCopies() {
  const copies = [...activities.values()].filter((activity) => activity.kind === 'copy');
  const shown = copies.map((copy) => {
    const transfer = copy.transfer;
    const made = element('div', {}, element('div', { className: 'name', text: copy.runs }));
    if (!transfer) {
      made.append(element('span', { className: 'faint', text: 'connecting' }));
      return made;
    }
    const bar = element('progress', { max: Math.max(1, transfer.total_bytes), value: transfer.bytes });
    bar.setAttribute('aria-label', `How much of ${copy.runs} is done`);
    const total = `${transfer.counted ? '' : 'at least '}${bytes(transfer.total_bytes)}`;
    const left = transfer.counted && copy.rate >= 1 ? `, ${span(Math.ceil((transfer.total_bytes - transfer.bytes) / copy.rate))} left` : '';
    const words = `${bytes(transfer.bytes)} of ${total}, ${bytes(copy.rate)}/s${left}; ${transfer.files} of ${plural(transfer.total_files, 'file')}`;
    made.append(bar, element('span', { className: 'faint', text: words }));
    if (transfer.failed > 0) made.append(' ', element('span', { className: 'failed', text: `${transfer.failed} failed` }));
    return made;
  });
  const none = element('p', { className: 'faint', text: 'No copies are running.' });
  $('#copies .list').replaceChildren(...(shown.length > 0 ? shown : [none]));
}

/** The failures, the last first; what failed alike on many hosts is one, in which … stands for their names. */
function foldedFailures() {
  const folded = new Map();
  for (const failure of failures.toReversed()) {
    const name = failure.host.replace(/[^\w]/g, '\\$&');
    const message = failure.host ? failure.message.replace(new RegExp(`(?<![\\w.-])${name}(?![\\w-])`, 'g'), '…') : failure.message;
    const key = JSON.stringify([message, failure.activity, failure.execution]);
    const one = folded.get(key) ?? { last: failure, message, hosts: new Set() };
    folded.set(key, one);
    one.hosts.add(failure.host);
  }
  return [...folded.values()];
}

function showFailures() {
  const now = Date.now() / 1000;
  const shown = foldedFailures().slice(0, 8).map(({ last, message, hosts }) => {
    const command = { DidNotStart: 'did not start', MayHaveStarted: 'may have started', Finished: 'finished' }[last.execution];
    const names = [...hosts].slice(0, 3).join(', ') + (hosts.size > 3 ? `, … (${hosts.size} hosts)` : '');
    const about = `${span(Math.max(1, now - last.at))} ago, ${last.activity} on ${names}: it ${command}`;
    const text = hosts.size === 1 ? last.message : message;
    return element('div', {}, element('div', { className: 'failed name', text }), element('span', { className: 'faint', text: about, title: [...hosts].join(', ') }));
  });
  const none = element('p', { className: 'faint', text: 'Nothing has failed since the daemon began.' });
  $('#failures .list').replaceChildren(...(shown.length > 0 ? shown : [none]));
}

/** A histogram of counts below 1, 2, 4 … times `unit` seconds. */
function chart(title, counts, unit) {
  const first = counts.findIndex((count) => count > 0);
  const made = element('div', { className: 'chart' }, element('h3', { text: title }));
  if (first < 0) {
    made.append(element('span', { text: 'none yet' }));
    return made;
  }
  const last = counts.findLastIndex((count) => count > 0);
  const most = Math.max(...counts);
  for (let bucket = first; bucket <= last; bucket++) {
    const isTop = bucket === counts.length - 1;
    const bar = element('i');
    bar.style.width = `${(100 * counts[bucket]) / most}%`;
    if (counts[bucket] === 0) bar.style.visibility = 'hidden';
    const bound = isTop ? `≥ ${span(unit * 2 ** (bucket - 1))}` : `< ${span(unit * 2 ** bucket)}`;
    made.append(element('span', { text: bound }), bar, element('span', { text: String(counts[bucket]) }));
  }
  return made;
}

function showLatencies() {
  const UNIT = 0.0001;
  const rtts = new Array(20).fill(0);
  for (const { report } of hosts.values()) {
    for (const { rtt } of report.connections) {
      if (rtt !== null) rtts[Math.min(rtts.length - 1, Math.max(0, Math.floor(Math.log2(rtt / UNIT)) + 1))] += 1;
    }
  }
  $('#latencies .charts').replaceChildren(
    chart('Round trips of connections', rtts, UNIT),
    chart('Sessions started on a warm connection', starts.warm.counts, 0.001),
    chart('Sessions that had to connect first', starts.cold.counts, 0.001),
  );
}

const asker = ({ programs, pid }) => `${[...programs].reverse().join(' › ') || '?'}${pid === null ? '' : ` (${pid})`}`;

function showSessions() {
  const all = [...activities.values()].filter((activity) => activity.kind !== 'copy').sort((a, b) => b.id - a.id);
  $('#sessions-h').textContent = `Sessions (${all.length})`;
  table('#sessions', [
    ['Host', (a) => a.host, 'name'],
    ['Kind', (a) => a.kind, 'wide'],
    ['Runs', (a) => (a.resumed > 0 ? `${a.runs}, carried over ${plural(a.resumed, 'time')}` : a.runs), 'name long'],
    ['For', (a) => a.on_behalf || asker(a.asker), 'name'],
    ['Started in', (a) => (a.started ? span(seconds(a.started)) : { text: 'starting', className: 'starting' }), 'number wide'],
    ['Age', (a) => span(Math.max(1, at - seconds(a.since))), 'number'],
  ], all.slice(0, ROWS));
}

function showHosts() {
  const wanted = $('#filter').value.toLowerCase();
  const found = [...hosts.values()].filter(({ report }) => report.name.toLowerCase().includes(wanted) || report.address.toLowerCase().includes(wanted));
  const order = new Intl.Collator('en', { numeric: true });
  const traffic = (host) => host.sent + host.received;
  found.sort((a, b) => (traffic(b) >= 1) - (traffic(a) >= 1) || (sessionsOf(b) > 0) - (sessionsOf(a) > 0) || order.compare(a.report.name, b.report.name));
  $('#hosts-h').textContent = `Hosts (${hosts.size})`;
  const rate = (value) => (value < 1 ? '' : `${bytes(value)}/s`);
  const count = (number) => (number === 0 ? '' : String(number));
  table('#hosts', [
    ['Host', (h) => ({ text: h.report.name, title: h.report.address }), 'name'],
    ['Address', (h) => h.report.address, 'name wide'],
    ['State', (h) => ({ text: stateOf(h), className: stateOf(h) })],
    ['Connections', (h) => count(h.report.connections.length), 'number wide'],
    ['Sessions', (h) => count(sessionsOf(h)), 'number'],
    ['Tunnels', (h) => count(tunnelsOf(h)), 'number wide'],
    ['Round trip', (h) => (rttOf(h) === null ? '' : span(rttOf(h))), 'number wide'],
    ['Sent', (h) => rate(h.sent), 'number'],
    ['Received', (h) => rate(h.received), 'number'],
  ], found.slice(0, ROWS));
  $('#more').textContent = found.length > ROWS ? `${found.length - ROWS} more. Those with traffic and sessions come first; the field above finds the others.` : '';
}

function forget() {
  hosts.clear();
  activities.clear();
  failures = [];
  before = 0;
}

$('#filter').addEventListener('input', showHosts);
begin(forget, update);
