// The desktop in a browser. noVNC shows the picture and sends input. The API of the companion sets the size of the
// screen and transfers the clipboard: the clipboard of VNC is slow and supports only Latin-1.
import RFB from './novnc/core/rfb.js';
import Clipboards from './clipboard.js';

const RETRY = [250, 500, 1000, 2000, 5000];
const SETTLED = 300;
// Without this limit the page would wait forever for a server that accepts the connection and sends nothing.
const CONNECT_TIMEOUT = 15000;

const at = (id) => document.getElementById(id);
const [state, screen, fit, dialog, text] = ['state', 'screen', 'fit', 'clipboard', 'text'].map(at);

// The name of the container, if the address has it.
const [name] = location.hostname.split('.localhost');
if (name !== location.hostname) document.title = `${name} · osctl desktop`;

let rfb = null;
let failures = 0;
let events = null;

function tell(words, isLost = false) {
  state.textContent = words;
  state.classList.toggle('lost', isLost);
}

async function api(method, path, body) {
  const headers = body ? { 'Content-Type': 'application/json' } : {};
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.error.message), { status: answer.status });
  return said;
}

const clipboards = new Clipboards(api, (words) => {
  // An open dialog keeps the text of the user.
  if (!dialog.open) text.value = words;
});

function connect() {
  tell('connecting');
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  const url = `${scheme}://${location.host}/desktop/socket`;
  screen.replaceChildren();
  rfb = new RFB(screen, url, { shared: true, wsProtocols: ['binary'] });
  rfb.scaleViewport = true;
  rfb.background = 'transparent';
  const connecting = rfb;
  const timeout = setTimeout(() => connecting.disconnect(), CONNECT_TIMEOUT);
  rfb.addEventListener('connect', () => {
    clearTimeout(timeout);
    failures = 0;
    tell('connected');
    document.documentElement.dataset.connected = 'yes';
    follow();
    rfb.focus();
    told(meet());
  });
  rfb.addEventListener('disconnect', () => {
    clearTimeout(timeout);
    delete document.documentElement.dataset.connected;
    rfb = null;
    retry();
  });
}

async function meet() {
  try {
    await clipboards.look();
  } finally {
    listen();
  }
  await clipboards.connected();
}

// Shows an error of the API. A lost connection is not an error here, because the page reconnects.
async function told(deed) {
  try {
    await deed;
  } catch (error) {
    if (error.status) tell(error.message, true);
  }
}

async function retry(why = 'connection lost, reconnecting') {
  const pause = RETRY[Math.min(failures, RETRY.length - 1)];
  failures += 1;
  tell(why, true);
  await new Promise((done) => setTimeout(done, pause));
  try {
    // A refused WebSocket has no reason; this request returns the reason, and starts the desktop.
    await api('GET', '/display/resolution');
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      tell('the session has expired; run `osctl desktop` to open the desktop again', true);
      return;
    }
    if (error.status) {
      // Shows the reason until the desktop is available.
      retry(error.message);
      return;
    }
  }
  connect();
}

// Sets the size of the screen to the visible area of this page.
let waiting = 0;
function follow() {
  if (fit.value !== 'resize' || !rfb) return;
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const { width, height } = screen.getBoundingClientRect();
    try {
      const now = await api('GET', '/display/resolution');
      const side = (length, most) => Math.max(320, Math.min(most, Math.floor(length)));
      const wish = { width: side(width, now.max_width), height: side(height, now.max_height) };
      if (wish.width !== now.width || wish.height !== now.height) {
        await api('PUT', '/display/resolution', wish);
      }
      if (document.documentElement.dataset.connected) tell('connected');
    } catch (error) {
      tell(error.message, true);
      // A desktop that is starting or busy gets the request again.
      if (error.status >= 500) setTimeout(follow, RETRY.at(-1));
    }
  }, SETTLED);
}

// Receives copied texts of the container while the page is visible: a browser limits the connections of all pages
// together. The browser reopens a broken event stream, but not a refused one.
function listen() {
  if (document.hidden || !rfb) return;
  if (events && events.readyState !== EventSource.CLOSED) return;
  events = new EventSource('/display/clipboard');
  events.addEventListener('message', ({ data }) => {
    const said = JSON.parse(data);
    if (said.type === 'copied') clipboards.came(said.text);
  });
}

at('copy').addEventListener('click', async () => {
  await told(clipboards.look());
  text.value = clipboards.inside;
  dialog.showModal();
});
dialog.addEventListener('close', async () => {
  if (dialog.returnValue === 'copy') await told(clipboards.copy(text.value));
  rfb?.focus();
});
fit.value = localStorage.getItem('fit') ?? 'resize';
fit.addEventListener('change', () => {
  localStorage.setItem('fit', fit.value);
  follow();
  rfb?.focus();
});
window.addEventListener('resize', follow);
window.addEventListener('focus', () => told(clipboards.visit()));
document.addEventListener('visibilitychange', () => (document.hidden ? events?.close() : listen()));
connect();
