//! The debugger of a browser, which answers from memory.

use parking_lot::Mutex;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, Clone, Default)]
pub(super) struct FakeBrowser(Arc<Mutex<FakeBrowserState>>);

#[derive(Debug, Default)]
struct FakeBrowserState {
    /// The addresses of the tabs; the browser does not answer without the list.
    tabs: Option<Vec<&'static str>>,
    answer_count: usize,
}

impl FakeBrowser {
    /// Starts a browser; returns also its port.
    pub(super) async fn start() -> (Self, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let browser = Self::default();
        tokio::spawn(browser.clone().run(listener));
        (browser, port)
    }

    async fn run(self, listener: TcpListener) {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(self.clone().answer(client));
        }
    }

    /// Answers one request.
    async fn answer(self, mut client: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if client.read_buf(&mut head).await.unwrap() == 0 {
                return;
            }
        }
        let body = {
            let mut state = self.0.lock();
            state.answer_count += 1;
            let tab = |url: &&str| format!(r#"{{"id": "1", "type": "page", "url": "{url}"}}"#);
            let tabs = state.tabs.iter().flatten().map(tab);
            match &state.tabs {
                Some(_) => format!("[{}]", tabs.collect::<Vec<_>>().join(",")),
                None => "no list".to_owned(),
            }
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        client.write_all(answer.as_bytes()).await.unwrap();
    }

    pub(super) fn set_tabs(&self, tabs: Option<&[&'static str]>) {
        self.0.lock().tabs = tabs.map(<[_]>::to_vec);
    }

    pub(super) fn answer_count(&self) -> usize {
        self.0.lock().answer_count
    }
}
