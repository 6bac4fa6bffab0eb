//! A connection to the X server on which every wait has a timeout.

use super::{DISPLAY_NAME, DisplayRefusal};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use x11rb::connection::Connection as _;
use x11rb::errors::{ConnectionError, ReplyError, ReplyOrIdError};
use x11rb::protocol::xproto::{
    AtomEnum, ConnectionExt as _, CreateWindowAux, EventMask, Screen, Window, WindowClass,
};
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

/// Maximum wait for a reply; a working server replies within milliseconds.
const X11_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

x11rb::atom_manager! {
    /// Atoms: names that both sides know by number.
    pub(super) Atoms: AtomsCookie {
        CLIPBOARD,
        INCR,
        OSCTL_SELECTION,
        TARGETS,
        UTF8_STRING,
        _NET_ACTIVE_WINDOW,
        _NET_CLIENT_LIST_STACKING,
        _NET_SUPPORTING_WM_CHECK,
        _NET_WM_NAME,
        _NET_WM_PID,
        _NET_WM_STATE,
        _NET_WM_STATE_HIDDEN,
        _NET_WM_WINDOW_TYPE,
        _NET_WM_WINDOW_TYPE_DESKTOP,
        _NET_WM_WINDOW_TYPE_DOCK,
    }
}

/// The socket; a wait for it ends after [`X11_REPLY_TIMEOUT`].
#[derive(Debug)]
pub(super) struct X11TimeoutStream(DefaultStream);

impl Stream for X11TimeoutStream {
    fn poll(&self, mode: PollMode) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, mode.readable());
        flags.set(PollFlags::POLLOUT, mode.writable());
        let mut polled = [PollFd::new(self.0.as_fd(), flags)];
        let timeout = PollTimeout::try_from(X11_REPLY_TIMEOUT).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            // The caller polls in a loop, so an interruption needs no error.
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, buffer: &mut [u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.read(buffer, fds)
    }

    fn write(&self, buffer: &[u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.write(buffer, fds)
    }
}

#[derive(Debug)]
pub(super) struct X11Connection {
    pub(super) x: RustConnection<X11TimeoutStream>,
    pub(super) atoms: Atoms,
    pub(super) root: Window,
    /// An invisible window of this connection: it owns selections and receives properties.
    pub(super) helper_window: Window,
}

impl X11Connection {
    /// # Errors
    /// When the server does not answer.
    pub(super) fn open() -> Result<Self, DisplayRefusal> {
        let x = connect_x11()?;
        let root = x.setup().roots[0].root;
        let atoms = Atoms::new(&x)
            .map_err(x11_call_failed)?
            .reply()
            .map_err(x11_call_failed)?;
        let helper_window = x.generate_id().map_err(x11_call_failed)?;
        let attributes = CreateWindowAux::new().event_mask(EventMask::PROPERTY_CHANGE);
        let class = WindowClass::INPUT_ONLY;
        x.create_window(
            0,
            helper_window,
            root,
            -1,
            -1,
            1,
            1,
            0,
            class,
            0,
            &attributes,
        )
        .map_err(x11_call_failed)?
        .check()
        .map_err(x11_call_failed)?;
        Ok(Self {
            x,
            atoms,
            root,
            helper_window,
        })
    }

    pub(super) fn default_screen(&self) -> &Screen {
        &self.x.setup().roots[0]
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.x.stream().0.as_fd()
    }

    /// Waits until the server has processed all requests.
    pub(super) fn sync(&self) -> Result<(), DisplayRefusal> {
        let reply = self.x.get_input_focus().map_err(x11_call_failed)?.reply();
        reply.map(|_| ()).map_err(x11_call_failed)
    }

    /// Reads a property of numbers; empty when the property is missing.
    pub(super) fn read_u32_property(
        &self,
        window: Window,
        property: u32,
    ) -> Result<Vec<u32>, DisplayRefusal> {
        let any = AtomEnum::ANY;
        let cookie = self
            .x
            .get_property(false, window, property, any, 0, 1 << 16);
        match cookie.map_err(x11_call_failed)?.reply() {
            Ok(reply) => Ok(reply.value32().map(Iterator::collect).unwrap_or_default()),
            Err(error) => ignore_missing_window(error).map(|()| Vec::new()),
        }
    }

    /// Reads a text property; empty when the property is missing.
    pub(super) fn read_text_property(
        &self,
        window: Window,
        property: u32,
    ) -> Result<String, DisplayRefusal> {
        let any = AtomEnum::ANY;
        let cookie = self
            .x
            .get_property(false, window, property, any, 0, 1 << 12);
        match cookie.map_err(x11_call_failed)?.reply() {
            Ok(reply) => Ok(String::from_utf8_lossy(&reply.value).into_owned()),
            Err(error) => ignore_missing_window(error).map(|()| String::new()),
        }
    }
}

fn connect_x11() -> Result<RustConnection<X11TimeoutStream>, DisplayRefusal> {
    let path = format!("/tmp/.X11-unix/X{}", &DISPLAY_NAME[1..]);
    let unavailable = |why: String| DisplayRefusal::Unavailable(why);
    let socket = UnixStream::connect(&path)
        .map_err(|e| unavailable(format!("cannot connect to `{path}`: {e}")))?;
    let (stream, _) = DefaultStream::from_unix_stream(socket)
        .map_err(|e| unavailable(format!("cannot connect to `{path}`: {e}")))?;
    RustConnection::connect_to_stream(X11TimeoutStream(stream), 0)
        .map_err(|e| unavailable(e.to_string()))
}

/// A failed call: either the connection ended, or the call has a bug.
pub(super) fn x11_call_failed(error: impl Into<X11CallError>) -> DisplayRefusal {
    DisplayRefusal::Unavailable(error.into().0)
}

/// Ignores the error that a window is gone, which is not a failure; returns any other error.
pub(super) fn ignore_missing_window(error: ReplyError) -> Result<(), DisplayRefusal> {
    match error {
        ReplyError::X11Error(_) => Ok(()),
        ReplyError::ConnectionError(error) => Err(x11_call_failed(error)),
    }
}

#[derive(Debug)]
pub(super) struct X11CallError(String);

impl From<ConnectionError> for X11CallError {
    fn from(error: ConnectionError) -> Self {
        Self(error.to_string())
    }
}

impl From<ReplyError> for X11CallError {
    fn from(error: ReplyError) -> Self {
        Self(error.to_string())
    }
}

impl From<ReplyOrIdError> for X11CallError {
    fn from(error: ReplyOrIdError) -> Self {
        Self(error.to_string())
    }
}
