//! A user's browser, on the host: a real headless Chromium, controlled through its debugger's protocol.

use crate::harness::{TEST_TIMEOUT, provide};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tokio_tungstenite::tungstenite::client;
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocket};

/// A page in a separate browser, which ends when dropped.
pub(crate) struct Page {
    browser: Child,
    _profile: tempfile::TempDir,
    socket: WebSocket<TcpStream>,
    session: Value,
    asked: u64,
}

impl Drop for Page {
    fn drop(&mut self) {
        // The browser may have ended.
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

/// Connects to the desktop once more, and says what happens, with the latest requests of the page.
const CONNECTION_TRACE: &str = "(async () => {
    const log = [], begin = performance.now();
    const note = (what) => log.push(`${Math.round(performance.now() - begin)} ms: ${what}`);
    await new Promise((done) => {
        const socket = new WebSocket(`ws://${location.host}/desktop/socket`, ['binary']);
        socket.binaryType = 'arraybuffer';
        socket.onopen = () => note('open');
        socket.onmessage = ({ data }) => { note(`${data.byteLength} bytes`); done(); };
        socket.onclose = ({ code }) => { note(`closed with ${code}`); done(); };
        setTimeout(done, 20000);
    });
    const requests = performance.getEntriesByType('resource').slice(-8);
    const times = requests.map((e) => [e.name, e.responseStatus, Math.round(e.startTime), Math.round(e.duration)]);
    return [document.visibilityState, log, times];
})()";

impl Page {
    pub(crate) fn open(url: &str, (width, height): (u16, u16)) -> Self {
        provide("chromium", &["chromium"]);
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .args(["--disable-dev-shm-usage", "--remote-debugging-port=0"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(browser.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(says.read_line(&mut line).unwrap() > 0, "no browser");
            if let Some(address) = line.trim().strip_prefix("DevTools listening on ") {
                break address.to_owned();
            }
        };
        // Drains the browser's stderr, so that a full pipe does not block the browser.
        std::thread::spawn(move || std::io::copy(&mut says, &mut std::io::sink()));
        let host = address
            .trim_start_matches("ws://")
            .split('/')
            .next()
            .unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let (socket, _) = client(address.as_str(), stream).unwrap();
        let mut page = Self {
            browser,
            _profile: profile,
            socket,
            session: Value::Null,
            asked: 0,
        };
        // The permissions that a user grants.
        let allowed = json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]});
        page.ask("Browser.grantPermissions", allowed);
        let target = page.ask("Target.createTarget", json!({"url": url}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        page.session = page.ask("Target.attachToTarget", attach)["sessionId"].clone();
        // The page has the focus, also without a screen.
        page.ask(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        page
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let asked = self.send(method, params);
        let answer = self.answer(asked);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.asked += 1;
        let mut words = json!({"id": self.asked, "method": method, "params": params});
        if !self.session.is_null() {
            words["sessionId"] = self.session.clone();
        }
        self.socket.send(Message::text(words.to_string())).unwrap();
        self.asked
    }

    fn answer(&mut self, asked: u64) -> Result<Value, Value> {
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else {
                continue;
            };
            let answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == asked {
                let is_well = answer["error"].is_null();
                return if is_well {
                    Ok(answer["result"].clone())
                } else {
                    Err(answer)
                };
            }
        }
    }

    /// Lets requests to these addresses fail; a star matches any text.
    pub(crate) fn block(&mut self, addresses: &[&str]) {
        self.ask("Network.enable", json!({}));
        self.ask("Network.setBlockedURLs", json!({"urls": addresses}));
    }

    /// The value of an expression in the page, awaited.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let words = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", words);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let begin = Instant::now();
        // An expression may fail while the page is loading.
        let asked =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        loop {
            let words = json!({"expression": asked, "returnByValue": true});
            let sent = self.send("Runtime.evaluate", words);
            // A page that is replaced answers with an error.
            if self
                .answer(sent)
                .is_ok_and(|a| a["result"]["value"] == true)
            {
                return;
            }
            if begin.elapsed() > TEST_TIMEOUT {
                let shown = self.value("document.body.innerText.slice(0, 500)");
                let trace = self.value(CONNECTION_TRACE);
                panic!(
                    "`{expression}` did not come true; the page shows {shown}; a connection of it: {trace}"
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Opens an address, as typed by a user.
    pub(crate) fn go(&mut self, url: &str) {
        let went = self.ask("Page.navigate", json!({"url": url}));
        assert!(went["errorText"].is_null(), "{url}: {went}");
    }

    /// Resizes the window.
    pub(crate) fn resize(&mut self, (width, height): (u16, u16)) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    pub(crate) fn double_click(&mut self, x: f64, y: f64) {
        let mut point = |kind: &str, held: u8, count: u8| {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let words = json!({"type": kind, "x": x, "y": y, "button": button, "buttons": held, "clickCount": count});
            self.ask("Input.dispatchMouseEvent", words);
        };
        point("mouseMoved", 0, 0);
        for count in [1, 2] {
            point("mousePressed", 1, count);
            point("mouseReleased", 0, count);
        }
    }

    /// Presses keys as a user does; a line break is the return key.
    pub(crate) fn press(&mut self, text: &str) {
        for character in text.chars() {
            let (key, code) = match character {
                '\n' => ("Enter".to_owned(), 13),
                other => (other.to_string(), other.to_ascii_uppercase() as u32),
            };
            let method = "Input.dispatchKeyEvent";
            // Down and up in one step: a key that is held for long repeats.
            let sent = ["keyDown", "keyUp"].map(|kind| {
                let words = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
                self.send(method, words)
            });
            for asked in sent {
                self.answer(asked).unwrap();
            }
        }
    }
}
