//! The resolution of the screen, changed while the server runs.

use super::DisplayRefusal;
use super::connection::{X11Connection, x11_call_failed};
use super::screen_probe::{is_covered_by_desktop, is_last_corner_painted};
use crate::protocol::display::ScreenSize;
use std::thread;
use std::time::{Duration, Instant};
use x11rb::protocol::randr::{
    ConnectionExt as _, GetScreenResourcesReply, ModeInfo, Rotation, SetConfig,
};
use x11rb::protocol::xproto::ConnectionExt as _;

/// Maximum time until the desktop covers a screen that has grown, even if it was just started on a busy machine, and
/// until the desktop is drawn there, unless it is black.
const DESKTOP_COVER_TIMEOUT: Duration = Duration::from_secs(8);
const DESKTOP_PAINT_TIMEOUT: Duration = Duration::from_secs(1);

/// Smaller screens are unusable.
const MIN_SCREEN_SIDE: u16 = 200;

/// Millimetres per inch, and pixels per inch, both in tenths.
const MM_TENTHS_PER_INCH: u32 = 254;
const PIXEL_TENTHS_PER_INCH: u32 = 960;

pub(super) fn read_screen_info(connection: &X11Connection) -> Result<ScreenSize, DisplayRefusal> {
    let x = &connection.x;
    let geometry = x.get_geometry(connection.root).map_err(x11_call_failed)?;
    let range = x
        .randr_get_screen_size_range(connection.root)
        .map_err(x11_call_failed)?;
    let (geometry, range) = (
        geometry.reply().map_err(x11_call_failed)?,
        range.reply().map_err(x11_call_failed)?,
    );
    Ok(ScreenSize {
        width: geometry.width,
        height: geometry.height,
        depth: geometry.depth,
        max_width: range.max_width,
        max_height: range.max_height,
    })
}

/// Changes the size, and waits until a desktop that was shown is shown again.
pub(super) fn change_resolution(
    connection: &X11Connection,
    (width, height): (u16, u16),
) -> Result<ScreenSize, DisplayRefusal> {
    let screen = read_screen_info(connection)?;
    let fits = |length: u16, max_length: u16| (MIN_SCREEN_SIDE..=max_length).contains(&length);
    if !fits(width, screen.max_width) || !fits(height, screen.max_height) {
        return Err(DisplayRefusal::Invalid(format!(
            "the screen does not support `{width}x{height}`: give a size from {MIN_SCREEN_SIDE}x{MIN_SCREEN_SIDE} to {}x{}",
            screen.max_width, screen.max_height
        )));
    }
    if (screen.width, screen.height) == (width, height) {
        return Ok(screen);
    }
    let had_desktop = is_covered_by_desktop(connection)?;
    set_resolution(connection, width, height)?;
    let begin = Instant::now();
    while had_desktop && !is_covered_by_desktop(connection)? {
        if begin.elapsed() > DESKTOP_COVER_TIMEOUT {
            let why = "the desktop does not cover the new screen";
            return Err(DisplayRefusal::NotApplied(why.into()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    while had_desktop
        && !is_last_corner_painted(connection)?
        && begin.elapsed() < DESKTOP_PAINT_TIMEOUT
    {
        thread::sleep(Duration::from_millis(10));
    }
    read_screen_info(connection)
}

fn set_resolution(
    connection: &X11Connection,
    width: u16,
    height: u16,
) -> Result<(), DisplayRefusal> {
    let x = &connection.x;
    let resources = x
        .randr_get_screen_resources(connection.root)
        .map_err(x11_call_failed)?
        .reply()
        .map_err(x11_call_failed)?;
    let (Some(crtc), Some(output)) = (resources.crtcs.first(), resources.outputs.first()) else {
        return Err(DisplayRefusal::Unavailable(
            "the X server has no output to resize".into(),
        ));
    };
    let mode = find_or_create_mode(connection, &resources, *output, (width, height))?;
    let before = x
        .randr_get_crtc_info(*crtc, resources.config_timestamp)
        .map_err(x11_call_failed)?
        .reply()
        .map_err(x11_call_failed)?;
    let screen = read_screen_info(connection)?;
    // A screen cannot be smaller than an output that shows a part of it, so the outputs are off during the change.
    let grab = x.grab_server().map_err(x11_call_failed)?;
    grab.check().map_err(x11_call_failed)?;
    let set_crtc = |size, mode, outputs: &[u32]| {
        set_crtc_mode(connection, *crtc, 0, &[])?;
        set_screen_size(connection, size)?;
        set_crtc_mode(connection, *crtc, mode, outputs)
    };
    let mut changed = set_crtc((width, height), mode, &[*output]);
    if let Err(why) = &changed {
        // Restores the old size: without this, no output would show anything.
        let old = (screen.width, screen.height);
        if let Err(worse) = set_crtc(old, before.mode, &before.outputs) {
            changed = Err(DisplayRefusal::Unavailable(format!(
                "{why}; the old size could not be restored: {worse}"
            )));
        }
    }
    let freed = x.ungrab_server().map_err(x11_call_failed)?;
    freed.check().map_err(x11_call_failed)?;
    connection.sync()?;
    changed
}

/// Shows a mode on these outputs; without outputs, switches the CRTC off.
fn set_crtc_mode(
    connection: &X11Connection,
    crtc: u32,
    mode: u32,
    outputs: &[u32],
) -> Result<(), DisplayRefusal> {
    let (now, at) = (x11rb::CURRENT_TIME, Rotation::ROTATE0);
    let set = connection
        .x
        .randr_set_crtc_config(crtc, now, now, 0, 0, mode, at, outputs)
        .map_err(x11_call_failed)?;
    check_set_config(set.reply().map_err(x11_call_failed)?.status)
}

/// A reply may report that the server changed nothing.
fn check_set_config(status: SetConfig) -> Result<(), DisplayRefusal> {
    match status {
        SetConfig::SUCCESS => Ok(()),
        other => Err(DisplayRefusal::NotApplied(format!(
            "the X server did not set the new size: {other:?}"
        ))),
    }
}

/// Sets the size of the screen; all outputs must be off.
fn set_screen_size(
    connection: &X11Connection,
    (width, height): (u16, u16),
) -> Result<(), DisplayRefusal> {
    let millimetres = |pixels: u16| u32::from(pixels) * MM_TENTHS_PER_INCH / PIXEL_TENTHS_PER_INCH;
    let (wide, high) = (millimetres(width), millimetres(height));
    connection
        .x
        .randr_set_screen_size(connection.root, width, height, wide, high)
        .map_err(x11_call_failed)?
        .check()
        .map_err(x11_call_failed)
}

/// The mode of this size, created if missing.
fn find_or_create_mode(
    connection: &X11Connection,
    resources: &GetScreenResourcesReply,
    output: u32,
    (width, height): (u16, u16),
) -> Result<u32, DisplayRefusal> {
    let x = &connection.x;
    let known = resources
        .modes
        .iter()
        .find(|mode| (mode.width, mode.height) == (width, height));
    if let Some(mode) = known {
        return Ok(mode.id);
    }
    let name = format!("{width}x{height}");
    let info = ModeInfo {
        width,
        height,
        htotal: width,
        vtotal: height,
        name_len: u16::try_from(name.len()).unwrap_or_default(),
        ..ModeInfo::default()
    };
    let mode = x
        .randr_create_mode(connection.root, info, name.as_bytes())
        .map_err(x11_call_failed)?
        .reply()
        .map_err(x11_call_failed)?
        .mode;
    x.randr_add_output_mode(output, mode)
        .map_err(x11_call_failed)?
        .check()
        .map_err(x11_call_failed)?;
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::check_set_config;
    use x11rb::protocol::randr::SetConfig;

    #[test]
    fn refused_crtc_change_is_an_error() {
        assert!(check_set_config(SetConfig::SUCCESS).is_ok());
        for no in [
            SetConfig::FAILED,
            SetConfig::INVALID_TIME,
            SetConfig::INVALID_CONFIG_TIME,
        ] {
            assert!(check_set_config(no).is_err(), "{no:?}");
        }
    }
}
