// Synchronizes the clipboard of the container and the clipboard of the browser: the text that was copied last replaces
// the other. Browsers give clipboard access only to a page in the foreground. A text that is copied in the container
// while the page is in the background waits until the user returns; if the user has copied another text by then, that
// text replaces the clipboard of the container.

// Texts have the line breaks of Linux.
const plain = (words) => words.replaceAll('\r\n', '\n');

export default class Clipboards {
  // The last known text of each clipboard; null: not known yet.
  #inside = null;
  #outside = null;
  // The text of the container has not been written to the browser yet.
  #waits = false;
  #api;
  #show;

  // `api` sends a request to the companion; `show` receives each new text of the container.
  constructor(api, show) {
    this.#api = api;
    this.#show = show;
  }

  get inside() {
    return this.#inside ?? '';
  }

  // Reads the clipboard of the container.
  async look() {
    await this.came((await this.#api('GET', '/display/clipboard')).text);
  }

  // Handles a text of the container.
  async came(words) {
    if (words === this.#inside) return;
    const isFirst = this.#inside === null;
    this.#inside = words;
    this.#show(words);
    // The first text was copied before the page was open, and an empty text must not clear the other clipboard.
    if (isFirst || !words) return;
    this.#waits = true;
    await this.#handOut();
  }

  // Handles a new connection. The screen may be new; then the clipboard of the old screen is lost.
  async connected() {
    if (!this.#inside) this.#outside = null;
    await this.visit();
  }

  // Handles that the page receives the focus.
  async visit() {
    if (!document.hasFocus()) return;
    const words = await this.#here();
    if (words && words !== this.#outside) {
      if (words !== this.#inside) await this.#put(words);
      this.#outside = words;
    } else if (this.#waits) {
      await this.#handOut();
    }
  }

  // Writes a text to both clipboards.
  async copy(words) {
    await this.#put(words);
    await this.#handOut();
  }

  async #here() {
    try {
      return plain(await navigator.clipboard.readText());
    } catch {
      // The user has not allowed access, or the browser does not support it; the dialog is the alternative.
      return null;
    }
  }

  async #put(words) {
    const before = this.#inside;
    this.#inside = words;
    this.#waits = false;
    try {
      await this.#api('PUT', '/display/clipboard', { text: words });
    } catch (error) {
      // A newer text of the container must stay.
      if (this.#inside === words) this.#inside = before;
      throw error;
    }
  }

  async #handOut() {
    const words = this.#inside;
    try {
      await navigator.clipboard.writeText(words);
      this.#outside = plain(words);
      this.#waits &&= words !== this.#inside;
    } catch {
      // The page is not in the foreground; the text waits.
    }
  }
}
