//! Readiness probes of the screen's services. Each probe opens its own connection, and blocks.

use super::DisplayRefusal;
use super::connection::{X11Connection, ignore_missing_window, x11_call_failed};
use x11rb::protocol::xproto::{Atom, ConnectionExt as _, ImageFormat, MapState, Window};

/// Number of rows of the screen that are probed.
const PROBED_ROWS: i16 = 32;

/// Side of a probed corner, in pixels.
const PROBED_CORNER_PIXELS: i16 = 8;

/// Whether the server answers.
pub(crate) fn is_server_responding() -> bool {
    X11Connection::open().is_ok()
}

/// Whether a window manager runs, which it shows by its own window.
pub(crate) fn has_window_manager() -> bool {
    let read_state = || {
        let connection = X11Connection::open()?;
        let check = connection.atoms._NET_SUPPORTING_WM_CHECK;
        let windows = connection.read_u32_property(connection.root, check)?;
        let Some(window) = windows.first() else {
            return Ok(false);
        };
        // The property outlives its owner, the window does not.
        Ok::<_, DisplayRefusal>(
            connection.read_u32_property(*window, check)?.first() == Some(window),
        )
    };
    read_state().unwrap_or(false)
}

/// Whether the desktop's window covers the screen and has visible content. The screen of a fresh server is black, and
/// so is a window that has not been drawn yet.
pub(crate) fn is_desktop_painted() -> bool {
    let check = || {
        let connection = X11Connection::open()?;
        Ok::<_, DisplayRefusal>(
            is_covered_by_desktop(&connection)? && has_visible_pixels(&connection)?,
        )
    };
    check().unwrap_or(false)
}

/// Whether a desktop's window exists and is at least as large as the screen: PCManFM's window keeps its size when the
/// screen becomes smaller.
pub(super) fn is_covered_by_desktop(connection: &X11Connection) -> Result<bool, DisplayRefusal> {
    let (width, height) = window_size(connection, connection.root)?.unwrap_or_default();
    let covers = |(w, h): (u16, u16)| w >= width && h >= height;
    for window in shown_windows(connection, connection.atoms._NET_WM_WINDOW_TYPE_DESKTOP)? {
        if window_size(connection, window)?.is_some_and(covers) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the taskbar's window is on the screen.
pub(crate) fn has_taskbar() -> bool {
    let find = || {
        let connection = X11Connection::open()?;
        shown_windows(&connection, connection.atoms._NET_WM_WINDOW_TYPE_DOCK)
    };
    find().is_ok_and(|found: Vec<Window>| !found.is_empty())
}

/// The windows of this type that are on the screen.
fn shown_windows(connection: &X11Connection, kind: Atom) -> Result<Vec<Window>, DisplayRefusal> {
    let list = connection.atoms._NET_CLIENT_LIST_STACKING;
    let mut shown = Vec::new();
    for window in connection.read_u32_property(connection.root, list)? {
        let kinds = connection.read_u32_property(window, connection.atoms._NET_WM_WINDOW_TYPE)?;
        if !kinds.contains(&kind) {
            continue;
        }
        let attributes = connection
            .x
            .get_window_attributes(window)
            .map_err(x11_call_failed)?;
        let is_viewable = match attributes.reply() {
            Ok(attributes) => attributes.map_state == MapState::VIEWABLE,
            Err(error) => ignore_missing_window(error).map(|()| false)?,
        };
        if is_viewable {
            shown.push(window);
        }
    }
    Ok(shown)
}

/// Whether any pixel is not black. A black desktop shows its icons.
fn has_visible_pixels(connection: &X11Connection) -> Result<bool, DisplayRefusal> {
    let Some((width, height)) = window_size(connection, connection.root)? else {
        return Ok(false);
    };
    let step = (height.cast_signed() - 1) / (PROBED_ROWS - 1);
    // From the bottom, where a picture that is being drawn arrives last.
    for row in (0..PROBED_ROWS).rev() {
        if has_lit_pixel(connection, (0, step * row, width, 1))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the screen's last corner is not black: a larger screen is drawn there last.
pub(super) fn is_last_corner_painted(connection: &X11Connection) -> Result<bool, DisplayRefusal> {
    let Some((width, height)) = window_size(connection, connection.root)? else {
        return Ok(false);
    };
    let (x, y) = (
        width.cast_signed() - PROBED_CORNER_PIXELS,
        height.cast_signed() - PROBED_CORNER_PIXELS,
    );
    let side = PROBED_CORNER_PIXELS.cast_unsigned();
    has_lit_pixel(connection, (x, y, side, side))
}

fn has_lit_pixel(
    connection: &X11Connection,
    (x, y, w, h): (i16, i16, u16, u16),
) -> Result<bool, DisplayRefusal> {
    let format = ImageFormat::Z_PIXMAP;
    let cookie = connection
        .x
        .get_image(format, connection.root, x, y, w, h, !0);
    match cookie.map_err(x11_call_failed)?.reply() {
        // The fourth byte of a pixel has no meaning.
        Ok(image) if image.depth >= 24 => {
            Ok((image.data.chunks_exact(4)).any(|pixel| pixel[..3] != [0; 3]))
        }
        Ok(image) => Ok(image.data.iter().any(|byte| *byte != 0)),
        Err(error) => ignore_missing_window(error).map(|()| false),
    }
}

fn window_size(
    connection: &X11Connection,
    window: Window,
) -> Result<Option<(u16, u16)>, DisplayRefusal> {
    match connection
        .x
        .get_geometry(window)
        .map_err(x11_call_failed)?
        .reply()
    {
        Ok(geometry) => Ok(Some((geometry.width, geometry.height))),
        Err(error) => ignore_missing_window(error).map(|()| None),
    }
}
