//! The screen's size, changed while it runs.

use super::Refusal;
use super::connection::{Connection, failed};
use super::probe::{is_covered, is_filled};
use crate::protocol::display::Screen;
use std::thread;
use std::time::{Duration, Instant};
use x11rb::protocol::randr::{
    ConnectionExt as _, GetScreenResourcesReply, ModeInfo, Rotation, SetConfig,
};
use x11rb::protocol::xproto::ConnectionExt as _;

/// In which the desktop covers a screen that has grown, be it just started on a busy machine, and in which it
/// is drawn there, unless it is black.
const PATIENCE: Duration = Duration::from_secs(8);
const DRAWN: Duration = Duration::from_secs(1);

/// Below, nobody can do anything.
const SMALLEST: u16 = 200;

/// Millimetres of an inch, in tenths, and pixels of it.
const INCH: u32 = 254;
const DENSITY: u32 = 960;

pub(super) fn read(connection: &Connection) -> Result<Screen, Refusal> {
    let x = &connection.x;
    let geometry = x.get_geometry(connection.root).map_err(failed)?;
    let range = x
        .randr_get_screen_size_range(connection.root)
        .map_err(failed)?;
    let (geometry, range) = (
        geometry.reply().map_err(failed)?,
        range.reply().map_err(failed)?,
    );
    Ok(Screen {
        width: geometry.width,
        height: geometry.height,
        depth: geometry.depth,
        max_width: range.max_width,
        max_height: range.max_height,
    })
}

/// Changes it, and where a desktop was shown waits until it is again.
pub(super) fn change(
    connection: &Connection,
    (width, height): (u16, u16),
) -> Result<Screen, Refusal> {
    let screen = read(connection)?;
    let fits = |length: u16, most: u16| (SMALLEST..=most).contains(&length);
    if !fits(width, screen.max_width) || !fits(height, screen.max_height) {
        return Err(Refusal::Invalid(format!(
            "`{width}x{height}` is no resolution for this screen: from {SMALLEST}x{SMALLEST} to {}x{}",
            screen.max_width, screen.max_height
        )));
    }
    if (screen.width, screen.height) == (width, height) {
        return Ok(screen);
    }
    let had_desktop = is_covered(connection)?;
    set(connection, width, height)?;
    let begin = Instant::now();
    while had_desktop && !is_covered(connection)? {
        if begin.elapsed() > PATIENCE {
            let why = "the desktop does not cover the new screen";
            return Err(Refusal::Unmoved(why.into()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    while had_desktop && !is_filled(connection)? && begin.elapsed() < DRAWN {
        thread::sleep(Duration::from_millis(10));
    }
    read(connection)
}

fn set(connection: &Connection, width: u16, height: u16) -> Result<(), Refusal> {
    let x = &connection.x;
    let resources = x
        .randr_get_screen_resources(connection.root)
        .map_err(failed)?
        .reply()
        .map_err(failed)?;
    let (Some(crtc), Some(output)) = (resources.crtcs.first(), resources.outputs.first()) else {
        return Err(Refusal::Gone("it has no output to change".into()));
    };
    let mode = mode(connection, &resources, *output, (width, height))?;
    let before = x
        .randr_get_crtc_info(*crtc, resources.config_timestamp)
        .map_err(failed)?
        .reply()
        .map_err(failed)?;
    let screen = read(connection)?;
    // A screen can't be smaller than what shows a part of it, so nothing does meanwhile.
    let grab = x.grab_server().map_err(failed)?;
    grab.check().map_err(failed)?;
    let place = |size, mode, outputs: &[u32]| {
        show(connection, *crtc, 0, &[])?;
        enlarge(connection, size)?;
        show(connection, *crtc, mode, outputs)
    };
    let mut changed = place((width, height), mode, &[*output]);
    if let Err(why) = &changed {
        // Otherwise nothing would be shown at all.
        let old = (screen.width, screen.height);
        if let Err(worse) = place(old, before.mode, &before.outputs) {
            changed = Err(Refusal::Gone(format!("{why}, and then: {worse}")));
        }
    }
    let freed = x.ungrab_server().map_err(failed)?;
    freed.check().map_err(failed)?;
    connection.sync()?;
    changed
}

/// Shows a mode on these outputs; none, where there are none.
fn show(connection: &Connection, crtc: u32, mode: u32, outputs: &[u32]) -> Result<(), Refusal> {
    let (now, at) = (x11rb::CURRENT_TIME, Rotation::ROTATE0);
    let set = connection
        .x
        .randr_set_crtc_config(crtc, now, now, 0, 0, mode, at, outputs)
        .map_err(failed)?;
    accepted(set.reply().map_err(failed)?.status)
}

/// A reply may also say that nothing was done.
fn accepted(status: SetConfig) -> Result<(), Refusal> {
    match status {
        SetConfig::SUCCESS => Ok(()),
        other => Err(Refusal::Unmoved(format!(
            "the screen does not take its new size: {other:?}"
        ))),
    }
}

/// Gives the screen a size; nothing of it may be shown.
fn enlarge(connection: &Connection, (width, height): (u16, u16)) -> Result<(), Refusal> {
    let millimetres = |pixels: u16| u32::from(pixels) * INCH / DENSITY;
    let (wide, high) = (millimetres(width), millimetres(height));
    connection
        .x
        .randr_set_screen_size(connection.root, width, height, wide, high)
        .map_err(failed)?
        .check()
        .map_err(failed)
}

/// A mode of that size, made where there is none.
fn mode(
    connection: &Connection,
    resources: &GetScreenResourcesReply,
    output: u32,
    (width, height): (u16, u16),
) -> Result<u32, Refusal> {
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
        .map_err(failed)?
        .reply()
        .map_err(failed)?
        .mode;
    x.randr_add_output_mode(output, mode)
        .map_err(failed)?
        .check()
        .map_err(failed)?;
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::accepted;
    use x11rb::protocol::randr::SetConfig;

    #[test]
    fn a_reply_that_says_no_is_no_success() {
        assert!(accepted(SetConfig::SUCCESS).is_ok());
        for no in [
            SetConfig::FAILED,
            SetConfig::INVALID_TIME,
            SetConfig::INVALID_CONFIG_TIME,
        ] {
            assert!(accepted(no).is_err(), "{no:?}");
        }
    }
}
