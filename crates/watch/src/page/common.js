'use strict';
// What every page is made with. What hosts, nodes, programs and servers are called becomes text, never HTML.

const ROWS = 200;

const $ = (query) => document.querySelector(query);

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  const { text, className, title, ...rest } = options;
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  if (title) made.title = title;
  Object.assign(made, rest);
  made.append(...children);
  return made;
}

function span(time) {
  if (time < 0.00995) return `${(time * 1e3).toFixed(1)} ms`;
  if (time < 1) return `${Math.min(999, time * 1e3).toFixed(0)} ms`;
  if (time < 100) return `${time.toFixed(0)} s`;
  if (time < 6000) return `${Math.floor(time / 60)} min`;
  if (time < 172800) return `${Math.floor(time / 3600)} h`;
  return `${Math.floor(time / 86400)} d`;
}

const plural = (count, name) => `${count} ${name}${count === 1 ? '' : 's'}`;
const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

function table(section, columns, rows) {
  const head = $(`${section} thead`);
  if (head.childElementCount === 0) {
    head.append(element('tr', {}, ...columns.map(([name, , className]) => element('th', { text: name, className: className ?? '', scope: 'col' }))));
  }
  const cells = (row) =>
    columns.map(([, of, className]) => {
      const value = of(row);
      if (value instanceof Node) return element('td', { className: className ?? '' }, value);
      return element('td', typeof value === 'string' ? { text: value, className: className ?? '' } : { ...value, className: `${className ?? ''} ${value.className ?? ''}` });
    });
  $(`${section} tbody`).replaceChildren(...rows.map((row) => element('tr', {}, ...cells(row))));
}

function showLost(why) {
  $('#lost').textContent = `${why}. This page goes on when it can.`;
  $('#lost').hidden = false;
}

/** Follows the events of this page: `forget` what was known, `update` it. */
function begin(forget, update) {
  const events = new EventSource('events');
  events.addEventListener('connected', forget);
  events.addEventListener('update', (event) => {
    $('#lost').hidden = true;
    update(JSON.parse(event.data));
  });
  events.addEventListener('lost', (event) => showLost(JSON.parse(event.data)));
  events.addEventListener('error', () => {
    showLost('trunkline serve-ui does not answer');
    // A browser gives up after an answer that is not a stream of events.
    if (events.readyState === EventSource.CLOSED) setTimeout(begin, 2000, forget, update);
  });
}
