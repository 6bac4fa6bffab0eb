"""Pages for the browser, served by code in the kernel, which prints the port."""

import http.server
import threading

PAGES = {
    # A window of one colour, and of another colour after the button is pressed.
    "/press": """<title>Loud</title><body style="background:#f0f"><p id=said>not yet</p>
        <button onclick="document.body.style.background = '#0f0';
            document.getElementById('said').textContent = 'it was ' + 'pressed'">press me
        </button>""",
    # Adds text by a script, and contains hidden text.
    "/page": """<title>Title ö</title><style>.h{display:none}</style>
        <p>shown</p><p class=h>hidden</p>
        <script>setTimeout(() => document.body.append('late' + 'r'), 400)</script>""",
    "/asks": """<title>Asks</title><p>shown</p><p id=said></p><script>alert('Look here');
        document.getElementById('said').textContent = [
            confirm('Delete all?') ? 'deleted' : 'not deleted',
            prompt('Your name?') === null ? 'nobody' : 'somebody'].join(', ')</script>""",
    # A user's work: the page asks before it is left, after the first input.
    "/work": """<title>Work</title><body style="margin:0">
        <textarea style="width:100vw;height:90vh"
            onfocus="document.title = 'Work: ' + (value || 'begun')"
            oninput="document.title = 'Work: ' + value"></textarea>
        <script>addEventListener('beforeunload', event => event.preventDefault())</script>""",
    # Stores the visitor in the browser's profile.
    "/keeps": """<title>Keeps</title><p id=said></p><script>
        document.getElementById('said').textContent = localStorage.getItem('kept') ?? 'a stranger';
        localStorage.setItem('kept', 'somebody who ' + 'has been here')</script>""",
    # Allocates memory until the browser ends the page.
    "/eats": """<title>Eats</title><p>hungry</p><script>const all = [];
        for (;;) all.push(new Uint8Array(64 << 20).fill(1))</script>""",
}
let_go = threading.Event()


class Page(http.server.BaseHTTPRequestHandler):
    """Answers `GET`; `/never` only after a request for `/let-go`."""

    def do_GET(self) -> None:
        if self.path == "/never":
            let_go.wait()
        if self.path == "/let-go":
            let_go.set()
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "/page")
            self.end_headers()
            return
        body = PAGES.get(self.path, "<title>Other</title><p>nothing of interest</p>")
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(f"<!doctype html>{body}".encode())

    def log_message(self, *_: object) -> None:
        pass


served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=served.serve_forever, daemon=True).start()
print(served.server_port)
