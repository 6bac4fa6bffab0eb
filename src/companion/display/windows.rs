//! Windows, as the window manager lists them.

use super::DisplayRefusal;
use super::connection::{X11Connection, ignore_missing_window, x11_call_failed};
use crate::protocol::display::Window;
use std::thread;
use std::time::{Duration, Instant};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    AtomEnum, ClientMessageEvent, ConnectionExt as _, EventMask, Window as Id,
};

/// Time in which a window manager brings a window to the front.
const WINDOW_FOCUS_TIMEOUT: Duration = Duration::from_secs(2);

/// The source of a request: a window manager obeys a pager.
const EWMH_SOURCE_PAGER: u32 = 2;

/// All windows but the desktop's own and the taskbar, the lowest first.
pub(super) fn list_windows(connection: &X11Connection) -> Result<Vec<Window>, DisplayRefusal> {
    let atoms = connection.atoms;
    let own_kinds = [
        atoms._NET_WM_WINDOW_TYPE_DESKTOP,
        atoms._NET_WM_WINDOW_TYPE_DOCK,
    ];
    let active = active_window(connection)?;
    let mut windows = Vec::new();
    for id in connection.read_u32_property(connection.root, atoms._NET_CLIENT_LIST_STACKING)? {
        let kinds = connection.read_u32_property(id, atoms._NET_WM_WINDOW_TYPE)?;
        if kinds.iter().any(|kind| own_kinds.contains(kind)) {
            continue;
        }
        windows.extend(read_window(connection, id, active)?);
    }
    Ok(windows)
}

/// One window; `None` when the window is gone.
fn read_window(
    connection: &X11Connection,
    id: Id,
    active: Option<Id>,
) -> Result<Option<Window>, DisplayRefusal> {
    let (x, atoms) = (&connection.x, connection.atoms);
    let geometry = match x.get_geometry(id).map_err(x11_call_failed)?.reply() {
        Ok(geometry) => geometry,
        Err(error) => return ignore_missing_window(error).map(|()| None),
    };
    let position = x
        .translate_coordinates(id, connection.root, 0, 0)
        .map_err(x11_call_failed)?;
    let position = match position.reply() {
        Ok(position) => position,
        Err(error) => return ignore_missing_window(error).map(|()| None),
    };
    let mut title = connection.read_text_property(id, atoms._NET_WM_NAME)?;
    if title.is_empty() {
        title = connection.read_text_property(id, AtomEnum::WM_NAME.into())?;
    }
    let class = connection.read_text_property(id, AtomEnum::WM_CLASS.into())?;
    // The window's name, then the program's, each terminated by a zero byte.
    let class = class.split_terminator('\0').next_back().unwrap_or_default();
    let state = connection.read_u32_property(id, atoms._NET_WM_STATE)?;
    Ok(Some(Window {
        id,
        title,
        class: class.into(),
        pid: connection
            .read_u32_property(id, atoms._NET_WM_PID)?
            .first()
            .copied(),
        x: position.dst_x.into(),
        y: position.dst_y.into(),
        width: geometry.width.into(),
        height: geometry.height.into(),
        focused: active == Some(id),
        minimized: state.contains(&atoms._NET_WM_STATE_HIDDEN),
    }))
}

fn active_window(connection: &X11Connection) -> Result<Option<Id>, DisplayRefusal> {
    let active = connection.atoms._NET_ACTIVE_WINDOW;
    Ok(connection
        .read_u32_property(connection.root, active)?
        .first()
        .copied())
}

/// Brings a window to the front, and waits until it is there.
pub(super) fn focus_window(connection: &X11Connection, id: Id) -> Result<(), DisplayRefusal> {
    let list = connection.atoms._NET_CLIENT_LIST_STACKING;
    if !connection
        .read_u32_property(connection.root, list)?
        .contains(&id)
    {
        return Err(DisplayRefusal::NoWindow(id));
    }
    let kind = connection.atoms._NET_ACTIVE_WINDOW;
    let request = ClientMessageEvent::new(32, id, kind, [EWMH_SOURCE_PAGER, 0, 0, 0, 0]);
    let listeners = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
    let x = &connection.x;
    x.send_event(false, connection.root, listeners, request)
        .map_err(x11_call_failed)?;
    x.flush().map_err(x11_call_failed)?;
    let begin = Instant::now();
    while active_window(connection)? != Some(id) {
        if begin.elapsed() > WINDOW_FOCUS_TIMEOUT {
            let why = format!("the window manager did not bring window {id} to the front");
            return Err(DisplayRefusal::NotApplied(why));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
