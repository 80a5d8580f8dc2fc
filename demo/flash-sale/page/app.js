// The page: one stream of states comes in, everything is drawn from the latest. No state of its own but the spark line.
'use strict';
const $ = (id) => document.getElementById(id);
const el = (tag, attrs = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const svg = (tag, attrs = {}, text = '') => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
};
const number = (x) => Math.round(x).toLocaleString('en');
const millis = (x) => (x >= 100 ? number(x) : x.toFixed(1));

let menu = { strategies: [], stores: [], nginx: false };
let state = null;
let spark = [];
let sale = 0;

async function start() {
  menu = await (await fetch('/menu')).json();
  for (const kind of new Set(menu.strategies.map((way) => way.kind))) {
    const group = el('div', { class: 'group', role: 'group', 'aria-label': kind }, el('span', { class: 'kind' }, kind));
    for (const way of menu.strategies.filter((way) => way.kind === kind)) {
      const button = el('button', { type: 'button', 'data-strategy': way.name, title: way.what }, way.name);
      button.addEventListener('click', () => run(way.name));
      group.append(button);
    }
    $('ways').append(group);
  }
  $('by-hand').hidden = menu.by_hand;
  for (const store of menu.stores) $('store').append(el('option', { value: store }, store));
  for (const label of document.querySelectorAll('.nginx')) label.hidden = !menu.nginx;
  $('pause').addEventListener('click', () => $('pause').setAttribute('aria-pressed', String(!pausing())));
  const events = new EventSource('/events');
  events.onmessage = (event) => draw(JSON.parse(event.data));
  events.onerror = () => say('The stage does not answer. It is asked again and again.', true);
}

const pausing = () => $('pause').getAttribute('aria-pressed') === 'true';

async function run(strategy) {
  const checked = (id) => $(id).checked;
  const order = {
    strategy, store: $('store').value, pause: pausing(),
    bucket: checked('bucket'), limit_req: checked('limit_req'), limit_conn: checked('limit_conn'),
  };
  const answer = await fetch('/run', {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(order),
  });
  if (!answer.ok) say(await answer.text(), true);
}

function say(text, error = false) {
  $('said').textContent = text;
  $('said').classList.toggle('error', error);
}

function draw(next) {
  state = next;
  if (state.sale !== sale) { sale = state.sale; spark = []; }
  const { books, stock } = state;
  for (const button of $('ways').querySelectorAll('button')) {
    const name = button.dataset.strategy;
    const row = state.rows.findLast((row) => row.strategy === name);
    button.disabled = state.running;
    button.classList.toggle('now', state.running && state.strategy === name);
    if (row) button.dataset.done = row.verdict;
  }
  const way = menu.strategies.find((way) => way.name === state.strategy);
  $('what').replaceChildren(...(way ? [el('b', {}, way.name), ` ${way.what}`] : ['Pick one: it sells 100 pieces to 50 customers who come ten times each.']));
  drawNodes();
  $('front').textContent = state.front;
  if (state.sale > 0) {
    $('left').textContent = String(books.left).replace('-', '−');
    $('left').classList.toggle('bad', books.left < 0);
    $('shelf').style.width = `${Math.max(0, books.left) / Math.max(1, stock) * 100}%`;
    const over = Math.max(0, books.sold - stock);
    $('sold').textContent = `${books.sold} of ${stock} sold` + (over ? `, ${over} too many` : '');
    drawLine();
    drawPace();
  }
  const row = state.rows.at(-1);
  const ended = !state.running && row && row.strategy === state.strategy;
  $('verdict').hidden = !ended;
  if (ended) {
    $('verdict').className = `verdict ${row.verdict.split(' ')[0]}`;
    $('verdict').textContent = {
      right: 'The books are right.',
      oversold: `Oversold: ${row.oversold} too many.`,
      stuck: `Stuck: nobody could buy for ${number(row.stuck_ms)} ms.`,
    }[row.verdict] ?? row.verdict;
    $('verdict').dataset.verdict = row.verdict;
  }
  if (state.error) say(state.error, true);
  else say(state.said.at(-1) ?? '');
  drawChart();
}

function drawNodes() {
  const names = ['node-1', 'node-2'];
  const most = Math.max(1, ...names.map((name) => state.books.by_node[name] ?? 0));
  $('nodes').replaceChildren(...names.map((name, i) => {
    const sold = state.books.by_node[name] ?? 0;
    const bar = el('span', { style: `width:${sold / most * 100}%` });
    const frozen = state.frozen === i;
    const label = el('span', {}, name, ...(frozen ? [el('em', {}, '❄ frozen')] : []));
    return el('div', { class: frozen ? 'node frozen' : 'node' }, el('b', {}, label, el('span', {}, number(sold))), el('i', {}, bar));
  }));
}

function drawLine() {
  if (!state.locked) {
    $('line').replaceChildren(el('p', { class: 'quiet' }, 'This way takes no lock of ours, so nobody holds and nobody waits.'));
    return;
  }
  const holders = state.inside.slice(0, 3).map((who) => {
    const held = who.for_ms === null ? '' : `for ${number(who.for_ms)} ms, `;
    const token = who.token === null ? '' : `token ${who.token}`;
    return el('div', { class: 'holder who' }, el('span', { class: `key ${who.node}` }), ` ${who.node} holds ${who.lock}`,
      el('small', {}, held + token));
  });
  if (state.inside.length > 3) holders.push(el('p', { class: 'quiet' }, `and ${state.inside.length - 3} more`));
  if (!holders.length) {
    $('line').replaceChildren(el('p', { class: 'quiet' }, state.running ? 'Nobody holds it just now.' : 'The sale is over: nobody holds it, nobody waits.'));
    return;
  }
  const kind = (who) => (/^node-[12]$/.test(who.node) ? who.node : 'other');
  const dots = el('div', { class: 'dots' }, ...state.waiting.slice(0, 60).map((who) => el('span', { class: kind(who), title: who.node })));
  const waits = el('p', { class: 'quiet' }, state.waiting.length ? `${state.waiting.length} wait in line` : 'Nobody waits.');
  $('line').replaceChildren(...holders, waits, dots);
}

function drawPace() {
  const { recent } = state;
  if (state.running) {
    spark.push(recent.qps);
    if (spark.length > 120) spark.shift();
  }
  const row = state.rows.at(-1);
  const shown = !state.running && row && row.strategy === state.strategy ? row : recent;
  $('qps').textContent = number(shown.qps);
  // In a moment without answers there is no time to speak of.
  const time = (x) => (shown.qps > 0 ? [millis(x), el('small', {}, ' ms')] : ['–']);
  $('mean').replaceChildren(...time(shown.mean_ms));
  $('p99').replaceChildren(...time(shown.p99_ms));
  $('progress').textContent = `${number(state.requests)} requests`;
  if (spark.length < 2) { $('spark').replaceChildren(); return; }
  const most = Math.max(1, ...spark);
  const points = spark.map((qps, i) => `${(i / (spark.length - 1) * 300).toFixed(1)},${(57 - qps / most * 52).toFixed(1)}`);
  $('spark').replaceChildren(
    svg('path', { class: 'area', d: `M0,60 L${points.join(' L')} L300,60 Z` }),
    svg('path', { d: `M${points.join(' L')}` }),
  );
}

function drawChart() {
  const rows = state.rows;
  $('compare').hidden = rows.length === 0;
  if (!rows.length) return;
  const narrow = window.matchMedia('(max-width: 34rem)').matches;
  const [width, label, height] = narrow ? [360, 0, 44] : [960, 270, 30];
  const room = narrow ? 195 : 430;
  const most = Math.max(1, ...rows.map((row) => row.qps));
  const chart = svg('svg', { viewBox: `0 0 ${width} ${rows.length * height + 6}`, role: 'img', 'aria-label': 'Comparison' });
  rows.forEach((row, i) => {
    const top = i * height + 4;
    const bar = Math.max(2, row.qps / most * room);
    const fault = row.fault.includes('frozen') ? ' · frozen' : '';
    const name = `${row.strategy} · ${row.store}${fault}`;
    const told = `${number(row.qps)}/s, p99 ${millis(row.p99_ms)} ms, ` + (row.oversold ? `${row.oversold} too many` : row.verdict);
    const y = narrow ? top + 18 : top;
    chart.append(
      svg('text', narrow ? { x: 0, y: top + 12 } : { x: label - 12, y: top + 15, 'text-anchor': 'end' }, name),
      svg('rect', { x: label, y, width: bar.toFixed(1), height: narrow ? 14 : 20, rx: 4, class: row.verdict.split(' ')[0] }),
      svg('text', { x: label + bar + 8, y: y + (narrow ? 12 : 15), class: 'n' }, narrow ? `${number(row.qps)}/s, ${row.oversold ? `${row.oversold} too many` : row.verdict}` : told),
    );
  });
  $('chart').replaceChildren(chart);
}

start();
