// The report as a page: a chart for each scenario and figure, and a table of everything.

/** The figures that are drawn, and their format. */
const FIGURES = [
  { key: 'mean', title: 'event-loop delay added, mean', unit: 'ms', digits: 3 },
  { key: 'p99', title: 'event-loop delay added, p99', unit: 'ms', digits: 2 },
  { key: 'max', title: 'event-loop delay added, max', unit: 'ms', digits: 1 },
  { key: 'startMax', title: 'longest delay while the streams are started', unit: 'ms', digits: 1 },
  { key: 'utilization', title: 'event-loop utilization', unit: '%', digits: 1, scale: 100 },
  { key: 'mainPerMb', title: 'CPU time of the main thread', unit: 'ms/MB', digits: 3 },
  { key: 'totalPerMb', title: 'CPU time of all processes', unit: 'ms/MB', digits: 2 },
  { key: 'serversPerMb', title: 'CPU time of the servers', unit: 'ms/MB', digits: 2 },
  { key: 'serverMemory', title: 'resident memory of a server', unit: 'MB', digits: 1 },
  { key: 'throughput', title: 'throughput', unit: 'MB/s', digits: 1 },
  { key: 'memory', title: 'resident memory of all processes', unit: 'MB', digits: 0 },
  { key: 'collections', title: 'garbage collections', unit: '/s', digits: 1 },
];

const escape = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

/** The middle one; the rounds are few. */
function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** A bar for each client, longest at the right end. */
function chart(rows, { title, unit, digits }) {
  const [label, bar, row] = [210, 260, 22];
  const top = Math.max(...rows.map(({ value }) => value), 1e-9);
  const bars = rows.map(({ client, value }, n) => {
    const width = Math.max(1, (value / top) * bar);
    const y = n * row;
    return (
      `<text x="${label - 8}" y="${y + 15}" text-anchor="end">${escape(client)}</text>` +
      `<rect x="${label}" y="${y + 4}" width="${width.toFixed(1)}" height="${row - 8}" rx="2" class="${client.startsWith('trunkline') ? 'own' : ''}"/>` +
      `<text x="${label + width + 6}" y="${y + 15}">${value.toFixed(digits)} ${unit}</text>`
    );
  });
  const height = rows.length * row;
  return `<figure><figcaption>${title}</figcaption><svg viewBox="0 0 580 ${height}" width="580" height="${height}" role="img" aria-label="${title}">${bars.join('')}</svg></figure>`;
}

export function page({ facts, scenarios, results, idle }) {
  const parts = scenarios.map(({ name, title }) => {
    const ran = results.filter(({ scenario, figures }) => scenario === name && figures);
    const clients = [...new Set(ran.map(({ client }) => client))];
    const charts = FIGURES.map((figure) => {
      const rows = clients.map((client) => {
        const values = ran.filter((result) => result.client === client).map(({ figures }) => figures[figure.key]);
        return { client, value: median(values.map((value) => value ?? 0)) * (figure.scale ?? 1) };
      });
      return chart(rows, figure);
    });
    const failed = results.filter(({ scenario, failure }) => scenario === name && failure);
    const failures = failed.map(({ client, failure }) => `<p>${escape(client)}: ${escape(failure)}</p>`);
    return `<section><h2>${escape(title)}</h2><div>${charts.join('')}</div>${failures.join('')}</section>`;
  });
  const waiting =
    idle?.resident === undefined
      ? ''
      : `<p>${idle.connections} connected hosts with an idle tail each, in one process: ${(idle.resident / 1e6).toFixed(1)} MB resident,
event loop busy ${(idle.utilization * 100).toFixed(2)} %, ${idle.cpu.toFixed(1)} ms of CPU time a second.</p>`;
  const said = Object.entries(facts).map(([key, value]) => `${key}: ${escape(value)}`).join(' · ');
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Streams over SSH and the event loop</title>
<style>
:root { color-scheme: light dark; --own: light-dark(#1f66c1, #6cabf7); --bar: light-dark(#a9b3bf, #5a6572); }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 24px auto; padding: 0 20px; }
section div { display: grid; grid-template-columns: repeat(auto-fill, minmax(560px, 1fr)); gap: 12px 24px; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
rect { fill: var(--bar); } rect.own { fill: var(--own); }
</style>
<h1>Streams over SSH and the event loop</h1>
<p>${said}</p>
<p>Delays, utilization and the main thread's CPU time are less those of the same process at rest. The main thread had a CPU for itself and everything else the other one,
but where nothing was pinned.</p>
${waiting}
${parts.join('\n')}
</html>
`;
}
