//! Windows, as the window manager lists them.

use super::Refusal;
use super::connection::{Connection, failed, vanished};
use crate::protocol::display::Window;
use std::thread;
use std::time::{Duration, Instant};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    AtomEnum, ClientMessageEvent, ConnectionExt as _, EventMask, Window as Id,
};

/// In which a window manager brings a window to the front.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who asks: a pager, whose wish a window manager follows.
const PAGER: u32 = 2;

/// All but the desktop's own, the lowest first.
pub(super) fn list(connection: &Connection) -> Result<Vec<Window>, Refusal> {
    let atoms = connection.atoms;
    let active = active(connection)?;
    let mut windows = Vec::new();
    for id in connection.numbers(connection.root, atoms._NET_CLIENT_LIST_STACKING)? {
        let kinds = connection.numbers(id, atoms._NET_WM_WINDOW_TYPE)?;
        if kinds.contains(&atoms._NET_WM_WINDOW_TYPE_DESKTOP) {
            continue;
        }
        windows.extend(read(connection, id, active)?);
    }
    Ok(windows)
}

/// One window; nothing when it is gone.
fn read(connection: &Connection, id: Id, active: Option<Id>) -> Result<Option<Window>, Refusal> {
    let (x, atoms) = (&connection.x, connection.atoms);
    let geometry = match x.get_geometry(id).map_err(failed)?.reply() {
        Ok(geometry) => geometry,
        Err(error) => return vanished(error).map(|()| None),
    };
    let place = x
        .translate_coordinates(id, connection.root, 0, 0)
        .map_err(failed)?;
    let place = match place.reply() {
        Ok(place) => place,
        Err(error) => return vanished(error).map(|()| None),
    };
    let mut title = connection.text(id, atoms._NET_WM_NAME)?;
    if title.is_empty() {
        title = connection.text(id, AtomEnum::WM_NAME.into())?;
    }
    let class = connection.text(id, AtomEnum::WM_CLASS.into())?;
    // The window's name, then the program's, each with a zero at its end.
    let class = class.split_terminator('\0').next_back().unwrap_or_default();
    let state = connection.numbers(id, atoms._NET_WM_STATE)?;
    Ok(Some(Window {
        id,
        title,
        class: class.into(),
        pid: connection.numbers(id, atoms._NET_WM_PID)?.first().copied(),
        x: place.dst_x.into(),
        y: place.dst_y.into(),
        width: geometry.width.into(),
        height: geometry.height.into(),
        focused: active == Some(id),
        minimized: state.contains(&atoms._NET_WM_STATE_HIDDEN),
    }))
}

fn active(connection: &Connection) -> Result<Option<Id>, Refusal> {
    let active = connection.atoms._NET_ACTIVE_WINDOW;
    Ok(connection
        .numbers(connection.root, active)?
        .first()
        .copied())
}

/// Brings a window to the front, and waits until it is there.
pub(super) fn focus(connection: &Connection, id: Id) -> Result<(), Refusal> {
    let list = connection.atoms._NET_CLIENT_LIST_STACKING;
    if !connection.numbers(connection.root, list)?.contains(&id) {
        return Err(Refusal::NoWindow(id));
    }
    let kind = connection.atoms._NET_ACTIVE_WINDOW;
    let wish = ClientMessageEvent::new(32, id, kind, [PAGER, 0, 0, 0, 0]);
    let listeners = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
    let x = &connection.x;
    x.send_event(false, connection.root, listeners, wish)
        .map_err(failed)?;
    x.flush().map_err(failed)?;
    let begin = Instant::now();
    while active(connection)? != Some(id) {
        if begin.elapsed() > PATIENCE {
            let why = format!("the window {id} did not come to the front");
            return Err(Refusal::Unmoved(why));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
