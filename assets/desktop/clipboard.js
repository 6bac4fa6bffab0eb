// Text on two clipboards, the one inside and the one here: what was copied last goes to the other.
// Browsers lend theirs to a page in the foreground only, so what was copied inside meanwhile waits for
// the person to come back; if they have copied something elsewhere by then, that goes inside.

// Texts have the line breaks of the system inside.
const plain = (words) => words.replaceAll('\r\n', '\n');

export default class Clipboards {
  // What was last seen on each; null: not known yet.
  #inside = null;
  #outside = null;
  // What is inside has not come out yet.
  #waits = false;
  #api;
  #show;

  // `api` asks the companion, `show` is given each text that is new inside.
  constructor(api, show) {
    this.#api = api;
    this.#show = show;
  }

  get inside() {
    return this.#inside ?? '';
  }

  // Looks inside.
  async look() {
    await this.came((await this.#api('GET', '/display/clipboard')).text);
  }

  // This is on the clipboard inside.
  async came(words) {
    if (words === this.#inside) return;
    const isFirst = this.#inside === null;
    this.#inside = words;
    this.#show(words);
    // What was there before the person came is not for them, and nothing takes nothing away.
    if (isFirst || !words) return;
    this.#waits = true;
    await this.#handOut();
  }

  // There is a screen, perhaps a new one: with the old one went what was copied there.
  async connected() {
    if (!this.#inside) this.#outside = null;
    await this.visit();
  }

  // The person has come to the page.
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

  // The person wants this text on both.
  async copy(words) {
    await this.#put(words);
    await this.#handOut();
  }

  async #here() {
    try {
      return plain(await navigator.clipboard.readText());
    } catch {
      // The person has not allowed it, or the browser has no such thing: the dialog is the other way.
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
      // Unless something came meanwhile.
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
      // Not in the foreground: it waits.
    }
  }
}
