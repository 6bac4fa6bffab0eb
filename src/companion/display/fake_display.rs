//! A screen in memory: it answers the requests to the screen in the thread of the test.

use super::display_thread::DisplayRequest;
use super::{DisplayClient, DisplayMailbox, DisplayRefusal, ScreenPicture};
use crate::companion::tests::clock::settle;
use crate::protocol::display::{ScreenSize, Window};
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use std::time::UNIX_EPOCH;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeDisplay(Arc<Mutex<FakeScreen>>);

#[derive(Debug, Default)]
struct FakeScreen {
    window_count: u32,
    /// The sizes that were set.
    sizes: Vec<(u16, u16)>,
    /// Each request is refused, while this is set.
    refusal: Option<DisplayRefusal>,
    is_paused: bool,
    /// Requests without an answer.
    waiting: Vec<DisplayRequest>,
}

impl FakeDisplay {
    /// Starts a screen; returns also its client.
    pub(crate) fn start() -> (Self, DisplayClient) {
        let display = Self::default();
        let (wake_reader, wake_pipe) =
            nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let (requests, mailbox) = mpsc::channel();
        let client = DisplayClient::default();
        let ours = DisplayMailbox {
            requests,
            wake_pipe,
        };
        client.screen_mailbox.set(ours).unwrap();
        let wakes = Receiver::from_owned_fd(wake_reader).unwrap();
        tokio::spawn(display.clone().run(mailbox, wakes));
        (display, client)
    }

    async fn run(self, mailbox: mpsc::Receiver<DisplayRequest>, mut wakes: Receiver) {
        while let Ok(1..) = wakes.read(&mut [0; 64]).await {
            let mut screen = self.0.lock();
            screen.waiting.extend(mailbox.try_iter());
            if !screen.is_paused {
                screen.answer_waiting();
            }
        }
    }

    pub(crate) fn set_window_count(&self, count: u32) {
        self.0.lock().window_count = count;
    }

    /// Refuses each request, or none.
    pub(crate) fn refuse(&self, refusal: Option<DisplayRefusal>) {
        self.0.lock().refusal = refusal;
    }

    /// Answers requests only in [`Self::answer_waiting`] from now on.
    pub(crate) fn pause(&self) {
        self.0.lock().is_paused = true;
    }

    /// Answers the requests that wait.
    pub(crate) async fn answer_waiting(&self) {
        self.0.lock().answer_waiting();
        settle().await;
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// The sizes that were set since the last call.
    pub(crate) fn take_sizes(&self) -> Vec<(u16, u16)> {
        std::mem::take(&mut self.0.lock().sizes)
    }
}

impl FakeScreen {
    fn answer_waiting(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            self.answer(request);
        }
    }

    fn answer(&mut self, request: DisplayRequest) {
        match request {
            DisplayRequest::ListWindows { reply } => {
                let windows = (0..self.window_count).map(open_window).collect();
                self.reply_with(reply, windows);
            }
            DisplayRequest::ResizeScreen { size, reply } => {
                if self.refusal.is_none() {
                    self.sizes.push(size);
                }
                let (width, height) = size;
                let screen = ScreenSize {
                    width,
                    height,
                    depth: 24,
                    max_width: 2560,
                    max_height: 1600,
                };
                self.reply_with(reply, screen);
            }
            DisplayRequest::CaptureScreen { reply, .. } => {
                let picture = ScreenPicture {
                    width: 1,
                    height: 1,
                    pixels: vec![0; 3],
                    screen_size: (1, 1),
                    captured_at: UNIX_EPOCH,
                };
                self.reply_with(reply, picture);
            }
            other => panic!("{other:?}"),
        }
    }

    fn reply_with<T>(&self, reply: oneshot::Sender<Result<T, DisplayRefusal>>, value: T) {
        let refusal = self.refusal.clone();
        // The caller may no longer wait.
        let _ = reply.send(refusal.map_or(Ok(value), Err));
    }
}

fn open_window(id: u32) -> Window {
    Window {
        id,
        title: "window".into(),
        class: "Program".into(),
        pid: None,
        x: 0,
        y: 0,
        width: 100,
        height: 100,
        focused: false,
        minimized: false,
    }
}
