// Starts the page. Its modules are many requests: if one fails or never ends, no code of them runs, so this script
// loads the page again.
const LOAD_TIMEOUT = 15000;
const RELOAD_DELAY = 1000;

const reload = () => location.reload();
const timeout = setTimeout(reload, LOAD_TIMEOUT);
import('./desktop.js').then(
  () => clearTimeout(timeout),
  (error) => {
    document.getElementById('state').textContent = `loading failed, trying again: ${error.message}`;
    setTimeout(reload, RELOAD_DELAY);
  },
);
