//! What the screen tells of its services. Each question has a connection of its own, and blocks.

use super::Refusal;
use super::connection::{Connection, failed, vanished};
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat, MapState, Window};

/// Rows of the screen that are looked at.
const ROWS: i16 = 32;

/// Pixels of a corner's sides.
const CORNER: i16 = 8;

/// Whether the server answers.
pub(crate) fn answers() -> bool {
    Connection::open().is_ok()
}

/// Whether a window manager has taken over, which it shows by a window of its own.
pub(crate) fn is_managed() -> bool {
    let look = || {
        let connection = Connection::open()?;
        let check = connection.atoms._NET_SUPPORTING_WM_CHECK;
        let shown = connection.numbers(connection.root, check)?;
        let Some(window) = shown.first() else {
            return Ok(false);
        };
        // The property outlives its owner, the window does not.
        Ok::<_, Refusal>(connection.numbers(*window, check)?.first() == Some(window))
    };
    look().unwrap_or(false)
}

/// Whether the desktop's window covers the screen and something of it can be seen. A fresh server's
/// screen is black, and so is a window that nobody has drawn yet.
pub(crate) fn is_painted() -> bool {
    let look = || {
        let connection = Connection::open()?;
        Ok::<_, Refusal>(is_covered(&connection)? && shows_something(&connection)?)
    };
    look().unwrap_or(false)
}

/// Whether a desktop's window is there and at least as large as the screen: PCManFM's stays as it is
/// when the screen becomes smaller.
pub(super) fn is_covered(connection: &Connection) -> Result<bool, Refusal> {
    let list = connection.atoms._NET_CLIENT_LIST_STACKING;
    let (width, height) = size(connection, connection.root)?.unwrap_or_default();
    for window in connection.numbers(connection.root, list)? {
        let kinds = connection.numbers(window, connection.atoms._NET_WM_WINDOW_TYPE)?;
        if !kinds.contains(&connection.atoms._NET_WM_WINDOW_TYPE_DESKTOP) {
            continue;
        }
        let attributes = connection.x.get_window_attributes(window).map_err(failed)?;
        let is_shown = match attributes.reply() {
            Ok(attributes) => attributes.map_state == MapState::VIEWABLE,
            Err(error) => vanished(error).map(|()| false)?,
        };
        let covers = |(w, h): (u16, u16)| w >= width && h >= height;
        if is_shown && size(connection, window)?.is_some_and(covers) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether there are pixels that are not black. A desktop of that colour shows its icons.
fn shows_something(connection: &Connection) -> Result<bool, Refusal> {
    let Some((width, height)) = size(connection, connection.root)? else {
        return Ok(false);
    };
    let step = (height.cast_signed() - 1) / (ROWS - 1);
    // From below, where a picture that is being drawn comes last.
    for row in (0..ROWS).rev() {
        if is_lit(connection, (0, step * row, width, 1))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the screen's last corner is not black, which is where a larger one is drawn last.
pub(super) fn is_filled(connection: &Connection) -> Result<bool, Refusal> {
    let Some((width, height)) = size(connection, connection.root)? else {
        return Ok(false);
    };
    let (x, y) = (width.cast_signed() - CORNER, height.cast_signed() - CORNER);
    let side = CORNER.cast_unsigned();
    is_lit(connection, (x, y, side, side))
}

fn is_lit(connection: &Connection, (x, y, w, h): (i16, i16, u16, u16)) -> Result<bool, Refusal> {
    let format = ImageFormat::Z_PIXMAP;
    let cookie = connection
        .x
        .get_image(format, connection.root, x, y, w, h, !0);
    match cookie.map_err(failed)?.reply() {
        // The fourth byte of a pixel means nothing.
        Ok(image) if image.depth >= 24 => {
            Ok((image.data.chunks_exact(4)).any(|pixel| pixel[..3] != [0; 3]))
        }
        Ok(image) => Ok(image.data.iter().any(|byte| *byte != 0)),
        Err(error) => vanished(error).map(|()| false),
    }
}

fn size(connection: &Connection, window: Window) -> Result<Option<(u16, u16)>, Refusal> {
    match connection.x.get_geometry(window).map_err(failed)?.reply() {
        Ok(geometry) => Ok(Some((geometry.width, geometry.height))),
        Err(error) => vanished(error).map(|()| None),
    }
}
