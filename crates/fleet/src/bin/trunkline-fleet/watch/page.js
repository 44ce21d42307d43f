// The fleet's updates, put together and shown.

const nodes = new Map();
const zones = new Map();
const moves = new Map();
const jobs = new Map();
const streams = new Map();
let fleet = null;

const order = new Intl.Collator('en', { numeric: true });
const SETTLED = ['succeeded', 'failed', 'not_started', 'unknown'];
const settledOf = (job) => sum(SETTLED, (name) => job[name]);
const ago = (at) => span(Math.max(1, fleet.now - at));
const count = (number) => (number === 0 ? '' : String(number));
const STATES = { lost: 'lost', in_trouble: 'in trouble', draining: 'draining', up: 'up', left: 'has left' };
const REASONS = { new: 'new', left: 'left', lost: 'lost', divided: 'divided anew' };

function forget() {
  for (const known of [nodes, zones, moves, jobs, streams]) known.clear();
}

function update(told) {
  for (const node of told.nodes) nodes.set(node.name, node);
  for (const zone of told.zones) zones.set(zone.site ?? '', zone);
  for (const move of told.moves) moves.set(move.id, move);
  for (const job of told.jobs) jobs.set(job.job, job);
  for (const gone of told.jobs_gone) jobs.delete(gone);
  for (const stream of told.streams) streams.set(stream.stream, stream);
  for (const gone of told.streams_gone) streams.delete(gone);
  while (moves.size > ROWS) moves.delete(moves.keys().next().value);
  if (!told.fleet) return;
  fleet = told.fleet;
  if (told.zones.length > 0 || told.nodes.length > 0) showShards();
  show();
}

function stateOf(job) {
  if (settledOf(job) >= job.hosts) return 'done';
  if (job.cancelled) return 'cancelled';
  if (job.running > 0) return 'running';
  return settledOf(job) > 0 ? 'waiting' : 'new';
}

function stateOfStream(stream) {
  if (stream.ended >= stream.hosts) return 'ended';
  if (stream.cancelled) return 'cancelled';
  if (stream.running > 0) return 'running';
  return stream.refused > 0 && stream.ended + stream.refused >= stream.hosts ? 'refused' : 'waiting';
}

function show() {
  $('#fleet').textContent = `Fleet ${fleet.name} at ${fleet.servers}`;
  showAlarm();
  showTiles();
  showNodes();
  showMoves();
  showJobs();
  showStreams();
  document.body.dataset.moment = String(Number(document.body.dataset.moment ?? 0) + 1);
}

function showAlarm() {
  const words = [];
  if (fleet.cut_off !== null) words.push(`NATS has not answered for ${span(Math.max(1, fleet.cut_off))}: this is the fleet as it was then.`);
  if (fleet.frozen !== null) words.push(`The fleet is frozen: ${fleet.frozen}`);
  $('#alarm').textContent = words.join(' ');
  $('#alarm').hidden = words.length === 0;
}

function showTiles() {
  const all = [...nodes.values()];
  const inState = (state) => all.filter((node) => node.state === state).length;
  const shards = [...zones.values()].flatMap((zone) => zone.owners);
  const open = [...jobs.values()].filter((job) => settledOf(job) < job.hosts);
  const standing = [...streams.values()].filter((stream) => stream.ended < stream.hosts);
  const tiles = [
    [inState('up'), 'nodes up', ''],
    [inState('draining'), 'draining', 'draining'],
    [inState('in_trouble') + inState('lost'), 'lost or in trouble', 'lost'],
    [shards.length, 'shards', ''],
    [shards.filter((owner) => owner === null).length, 'without an owner', 'lost'],
    [open.length, 'jobs under way', ''],
    [sum(open, (job) => job.running), 'hosts at work', ''],
    [standing.length, 'streams', ''],
    [sum(standing, (stream) => stream.running), 'hosts streaming', ''],
  ];
  $('#tiles').replaceChildren(...tiles.map(([value, name, alarm]) => element('div', { className: 'tile' }, element('b', { text: String(value), className: value > 0 ? alarm : '' }), element('span', { className: 'faint', text: name }))));
}

function showNodes() {
  const rank = Object.keys(STATES);
  const all = [...nodes.values()].sort((a, b) => rank.indexOf(a.state) - rank.indexOf(b.state) || order.compare(a.name, b.name));
  $('#nodes-h').textContent = `Nodes (${all.length})`;
  table('#nodes', [
    ['Node', (n) => ({ text: n.name, title: n.trouble ?? '' }), 'name'],
    ['Site', (n) => n.site ?? '', 'name wide'],
    ['State', (n) => ({ text: STATES[n.state], className: n.state })],
    ['Shards', (n) => count(n.shards), 'number'],
    ['Running', (n) => count(['lost', 'left'].includes(n.state) ? 0 : n.running), 'number'],
    ['Heard', (n) => `${ago(n.heard)} ago`, 'number'],
    ['Version', (n) => n.version, 'wide'],
    ['Trouble', (n) => ({ text: n.trouble ?? '', className: 'failed' }), 'name long wide'],
  ], all.slice(0, ROWS));
}

function showMoves() {
  const all = [...moves.values()].reverse();
  $('#moves .none').textContent = all.length === 0 ? 'No shard has moved since this page was opened.' : '';
  $('#moves .scroll').hidden = all.length === 0;
  table('#moves', [
    ['Ago', (m) => ago(m.at), 'number'],
    ['Shards', (m) => String(m.shards), 'number'],
    ['Site', (m) => m.site ?? '', 'name wide'],
    ['From', (m) => m.from ?? 'nobody', 'name'],
    ['To', (m) => m.to, 'name'],
    ['Why', (m) => ({ text: REASONS[m.reason], className: m.reason })],
  ], all.slice(0, 50));
}

/** A colour for each node, far from those of its neighbours. The first is not that of an alarm. */
const hue = (place) => Math.round((210 + place * 137.508) % 360);

function showShards() {
  const owners = [...new Set([...zones.values()].flatMap((zone) => zone.nodes))].sort(order.compare);
  const places = new Map(owners.map((name, place) => [name, place]));
  const isLost = (name) => ['lost', 'in_trouble'].includes(nodes.get(name)?.state);
  const paint = (made, name) => {
    if (name === undefined) made.className = 'free';
    else {
      made.style.setProperty('--hue', hue(places.get(name)));
      if (isLost(name)) made.className = 'gone';
    }
    return made;
  };
  $('#legend').replaceChildren(...owners.slice(0, ROWS).map((name) => element('span', { className: 'name' }, paint(element('i'), name), name)));
  const maps = [...zones.values()].sort((a, b) => order.compare(a.site ?? '', b.site ?? ''));
  $('#maps').replaceChildren(...maps.map((zone) => {
    const cells = zone.owners.map((owner, shard) => {
      const name = owner === null ? undefined : zone.nodes[owner];
      return paint(element('i', { title: `${shard}: ${name ?? 'nobody'}` }), name);
    });
    const title = zone.site === null ? 'Hosts that no site claims' : `Site ${zone.site}`;
    const free = zone.owners.filter((owner) => owner === null).length;
    const words = `${plural(zone.nodes.length, 'node')}${free > 0 ? `, ${plural(free, 'shard')} without an owner` : ''}`;
    const map = element('div', { className: 'map' }, ...cells);
    map.setAttribute('role', 'img');
    map.setAttribute('aria-label', `${title}: ${words}`);
    return element('div', {}, element('h3', { text: title }), map, element('span', { className: 'faint', text: words }));
  }));
}

/** How all hosts of something are, as parts of a bar: pairs of a class and a count. */
function bar(hosts, parts, words) {
  const made = element('div', { className: 'job' });
  for (const [className, count] of parts) {
    if (count === 0) continue;
    const part = element('i', { className });
    part.style.width = `${(100 * count) / Math.max(1, hosts)}%`;
    made.append(part);
  }
  made.setAttribute('role', 'img');
  made.setAttribute('aria-label', words);
  return made;
}

const progress = (job) => bar(job.hosts, [...SETTLED, 'running'].map((name) => [name, job[name]]), `${settledOf(job)} of ${plural(job.hosts, 'host')} settled`);

function progressOfStream(stream) {
  const parts = [['running', stream.running], ['succeeded', stream.ended - stream.failed], ['failed', stream.failed], ['not_started', stream.refused]];
  return bar(stream.hosts, parts, `${stream.running} of ${plural(stream.hosts, 'host')} running, ${stream.ended} ended, ${stream.refused} refused`);
}

function showJobs() {
  const wanted = $('#filter').value.toLowerCase();
  const has = (job) => [job.job, job.submitter, stateOf(job), ...job.failures.flat()].some((words) => words.toLowerCase().includes(wanted));
  const found = [...jobs.values()].filter(has).sort((a, b) => (settledOf(a) >= a.hosts) - (settledOf(b) >= b.hosts) || b.at - a.at || order.compare(a.job, b.job));
  $('#jobs-h').textContent = `Jobs (${jobs.size + fleet.older_jobs})`;
  table('#jobs', [
    ['Job', (j) => ({ text: j.job, title: j.submitter }), 'name'],
    ['Age', (j) => ago(j.at), 'number wide'],
    ['State', (j) => ({ text: stateOf(j), className: stateOf(j) })],
    ['Done', (j) => progress(j)],
    ['Hosts', (j) => String(j.hosts), 'number'],
    ['Running', (j) => count(j.running), 'number wide'],
    ['Finished', (j) => count(j.succeeded + j.failed), 'number wide'],
    ['Failed', (j) => ({ text: count(j.failed), className: 'failed' }), 'number'],
    ['Did not start', (j) => count(j.not_started), 'number wide'],
    ['May have started', (j) => ({ text: count(j.unknown), className: 'failed' }), 'number wide'],
    ['Submitter', (j) => `${j.submitter.slice(0, 8)}…`, 'name wide'],
    ['Failures', (j) => j.failures.slice(0, 2).map(([host, why]) => `${host}: ${why}`).join('; '), 'name long wide'],
  ], found.slice(0, ROWS));
  const more = [];
  if (found.length > ROWS) more.push(`${found.length - ROWS} more. Those under way and the newest come first; the field above finds the others.`);
  if (fleet.older_jobs > 0) more.push(`${fleet.older_jobs} older ones are not shown; trunkline fleet status lists them.`);
  $('#more').textContent = more.join(' ');
}

function showStreams() {
  const isOver = (stream) => stream.ended >= stream.hosts;
  const wanted = $('#streams-filter').value.toLowerCase();
  const words = (stream) => [stream.stream, stream.submitter, stateOfStream(stream), stream.subject ?? '', ...stream.nodes.flatMap((node) => [node.name, node.why ?? ''])];
  const found = [...streams.values()].filter((stream) => words(stream).some((word) => word.toLowerCase().includes(wanted)));
  found.sort((a, b) => isOver(a) - isOver(b) || b.at - a.at || order.compare(a.stream, b.stream));
  const names = (stream) => stream.nodes.filter((node) => node.running > 0).map((node) => node.name).sort(order.compare).join(', ');
  $('#streams-h').textContent = `Streams (${streams.size + fleet.older_streams})`;
  $('#streams .none').textContent = streams.size === 0 ? 'The fleet keeps no stream.' : '';
  $('#streams .scroll').hidden = streams.size === 0;
  $('#streams-filter').hidden = streams.size === 0;
  table('#streams', [
    ['Stream', (s) => ({ text: s.stream, title: s.submitter }), 'name'],
    ['Age', (s) => ago(s.at), 'number wide'],
    ['State', (s) => ({ text: stateOfStream(s), className: stateOfStream(s) })],
    ['How they are', (s) => progressOfStream(s)],
    ['Hosts', (s) => String(s.hosts), 'number'],
    ['Running', (s) => count(s.running), 'number'],
    ['Ended', (s) => count(s.ended), 'number'],
    ['Refused', (s) => ({ text: count(s.refused), className: 'failed' }), 'number'],
    ['Begun again', (s) => count(s.restarts), 'number wide'],
    ['Nodes', names, 'name long wide'],
    ['To subject', (s) => s.subject ?? '', 'name wide'],
    ['Submitter', (s) => `${s.submitter.slice(0, 8)}…`, 'name wide'],
    ['Why it is refused', (s) => s.nodes.map((node) => node.why).filter((why) => why !== null).slice(0, 2).join('; '), 'name long wide'],
  ], found.slice(0, ROWS));
  const more = [];
  if (found.length > ROWS) more.push(`${found.length - ROWS} more. Those that stand and the newest come first; the field above finds the others.`);
  if (fleet.older_streams > 0) more.push(`${fleet.older_streams} older ones are not shown; trunkline fleet status lists them.`);
  $('#more-streams').textContent = more.join(' ');
}

$('#streams-filter').addEventListener('input', () => fleet && showStreams());
$('#filter').addEventListener('input', () => fleet && showJobs());
begin(forget, update);
