// Runs one task and one session at a time over WebSockets; docs/pool.md describes the protocol.

const at = (id) => document.getElementById(id);
const decoder = () => new TextDecoder();
let programs = [];
let token = null;

async function begin() {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch('/pool/programs', { headers });
  at('token-form').hidden = answer.status !== 401;
  if (!answer.ok) {
    at('state').textContent = answer.status === 401 ? 'token needed' : 'the pool is not available';
    return;
  }
  programs = await answer.json();
  const status = await (await fetch('/pool/status', { headers })).json();
  at('duration').replaceChildren(at('duration').firstElementChild, ...status.classes.map(time));
  at('state').textContent = 'ready';
  at('program').replaceChildren(...programs.map((program) => option(program.name)));
  choose();
}

function option(name) {
  const made = document.createElement('option');
  made.textContent = name;
  return made;
}

function time({ name, seconds }) {
  const made = option(`${name}: ${seconds} s`);
  made.value = seconds;
  return made;
}

const program = () => programs.find((one) => one.name === at('program').value);

function choose() {
  const { formats, format, example, interactive } = program();
  at('format').replaceChildren(...formats.map(option));
  at('format').value = format;
  at('code').value = example;
  at('shell').hidden = !interactive;
}

// Opens a WebSocket and calls `onFrame` for each frame, with the bytes that belong to it.
function connect(path, onFrame, onClose) {
  const protocols = ['taskyard.pool', ...(token ? [`bearer.${token}`] : [])];
  const url = new URL(path, location.href.replace(/^http/, 'ws'));
  const socket = new WebSocket(url, protocols);
  socket.binaryType = 'arraybuffer';
  let waiting = null;
  socket.onmessage = ({ data }) => {
    if (typeof data !== 'string') {
      onFrame(...waiting, data);
      return;
    }
    const cut = data.indexOf(' ');
    const [verb, body] = [data.slice(0, cut), JSON.parse(data.slice(cut + 1))];
    waiting = [verb, body];
    if (verb !== 'output' && verb !== 'result') onFrame(verb, body, null);
  };
  socket.onclose = onClose;
  return socket;
}

// The remaining time in the queue counts down between two messages.
let due = { p50: null, p90: null, estimate: null };
function showQueue(position) {
  at('queue').hidden = !position;
  const received = performance.now();
  for (const name in due) due[name] = typeof position?.[name] === 'number' ? received + position[name] * 1000 : null;
  if (!position) return;
  at('ahead').textContent = position.ahead === 0 ? 'You are next.' : `${position.ahead} ahead of you.`;
  at('why').textContent = `Why: ${position.words}.`;
  countDown();
}

function countDown() {
  const left = (moment) => Math.max(0, Math.ceil((moment - performance.now()) / 1000));
  const [p50, p90] = [left(due.p50), left(due.p90)];
  const likely = due.p90 === null ? '' : `Probably in ${p50 === p90 ? p50 : `${p50} to ${p90}`} s. `;
  at('left').textContent = due.estimate === null ? 'No estimate yet.' : `${likely}At most ${left(due.estimate)} s.`;
}
setInterval(() => { if (!at('queue').hidden) countDown(); }, 250);

let task = null;
let result = null;
// Whether the final frame of the task has arrived, and whether the user stopped it.
let ended = false;
let stopped = false;
function run() {
  at('error').hidden = at('picture').hidden = at('download').hidden = true;
  at('document').hidden = true;
  at('document').replaceChildren();
  at('output').textContent = '';
  ended = stopped = false;
  showQueue(null);
  const text = decoder();
  const path = `/pool/run/${at('program').value}`;
  task = connect(path, (verb, body, bytes) => onTaskFrame(verb, body, bytes, text), taskClosed);
  task.onopen = () => {
    const options = { format: at('format').value };
    if (at('duration').value) options.duration = Number(at('duration').value);
    task.send(`options ${JSON.stringify(options)}`);
    task.send(`input ${JSON.stringify({ filename: `main${program().input}` })}`);
    task.send(new TextEncoder().encode(at('code').value));
    task.send('start {}');
  };
  busy(true);
  at('state').textContent = 'sent';
}

function stop() {
  stopped = true;
  task.close();
  at('state').textContent = 'stopping';
}

function taskClosed() {
  busy(false);
  if (ended) return;
  at('state').textContent = stopped ? 'stopped' : 'failed';
  if (!stopped) showError('the connection to the pool was lost; run the task again');
}

function showError(text) {
  at('error').textContent = text ?? '';
  at('error').hidden = !text;
}

function busy(is) {
  at('run').disabled = is;
  at('stop').disabled = !is;
  if (!is) showQueue(null);
}

function onTaskFrame(verb, body, bytes, text) {
  if (stopped) return;
  if (verb === 'queue') {
    at('state').textContent = 'waiting';
    showQueue(body);
  } else if (verb === 'output') {
    at('state').textContent = 'running';
    showQueue(null);
    at('output').textContent += text.decode(bytes, { stream: true });
  } else if (verb === 'status') {
    at('state').textContent = body.announcement;
  } else if (verb === 'result') {
    showResult(body, bytes);
  } else if (verb === 'complete' || verb === 'deny') {
    ended = true;
    at('state').textContent = body.error ? 'failed' : 'done';
    showError(body.error);
  }
}

function showResult({ format, media }, bytes) {
  if (result) URL.revokeObjectURL(result);
  result = URL.createObjectURL(new Blob([bytes], { type: media }));
  if (media.startsWith('image/')) {
    at('picture').src = result;
    at('picture').hidden = false;
  } else if (media === 'application/pdf') {
    showDocument(result, media);
  }
  at('download').href = result;
  at('download').download = `result.${format}`;
  at('download').hidden = false;
}

// A browser that cannot show the document shows the text instead.
function showDocument(url, media) {
  const shown = document.createElement('object');
  shown.type = media;
  shown.data = url;
  shown.setAttribute('aria-label', 'The result');
  shown.textContent = 'This browser cannot show the document here; save it instead.';
  at('document').replaceChildren(shown);
  at('document').hidden = false;
}

let session = null;
function openSession() {
  at('talk').textContent = '';
  const text = decoder();
  session = connect(`/pool/run/${at('program').value}/interactive`, (verb, body, bytes) => {
    if (verb === 'output') at('talk').textContent += text.decode(bytes, { stream: true });
    else if (body.error) at('talk').textContent += `\n${body.error}\n`;
  }, () => inSession(false));
  session.onopen = () => {
    session.send('start {}');
    inSession(true);
  };
}

function inSession(is) {
  at('open').disabled = is;
  at('leave').disabled = at('line').disabled = !is;
}

at('run').onclick = run;
at('stop').onclick = stop;
at('open').onclick = openSession;
at('leave').onclick = () => session.close();
at('program').onchange = choose;
at('ask').onsubmit = (event) => {
  event.preventDefault();
  session.send('input {"stream": "stdin"}');
  session.send(new TextEncoder().encode(`${at('line').value}\n`));
  at('talk').textContent += `${at('line').value}\n`;
  at('line').value = '';
};
at('token-form').onsubmit = (event) => {
  event.preventDefault();
  token = at('token').value;
  begin();
};
begin();
