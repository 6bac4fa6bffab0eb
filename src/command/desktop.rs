//! `osctl desktop`: opens the container's desktop in the user's browser.

use super::CommandContext;
use super::answers::DesktopAnswer;
use crate::config::{RESOLUTION_RULE, parse_resolution};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::display::DesktopLink;
use clap::Args;
use std::time::Duration;

/// How long osctl waits for a launcher to report that it found no browser.
const BROWSER_LAUNCH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct DesktopArgs {
    /// Print the link, which works once, instead of opening the browser
    #[arg(long, conflicts_with = "resolution")]
    url: bool,
    /// Change the resolution, for example to 1920x1080
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    resolution: Option<String>,
}

#[derive(Debug)]
enum DesktopPlan {
    Open,
    Print,
    Resize(u16, u16),
}

impl TryFrom<DesktopArgs> for DesktopPlan {
    type Error = Error;

    fn try_from(args: DesktopArgs) -> std::result::Result<Self, Error> {
        let DesktopArgs {
            url,
            resolution: text,
        } = args;
        let Some(text) = text else {
            return Ok(if url { Self::Print } else { Self::Open });
        };
        let (width, height) = parse_resolution(&text).ok_or_else(|| {
            Error::usage(
                format!("`{text}` is not a resolution; give {RESOLUTION_RULE}"),
                "write, for example, `--resolution 1920x1080`",
            )
        })?;
        Ok(Self::Resize(width, height))
    }
}

pub(crate) async fn run(args: DesktopArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = DesktopPlan::try_from(args)?;
    let client = cx.companion_client()?;
    if let DesktopPlan::Resize(width, height) = plan {
        let work = cx.ui.start_request("changing the resolution");
        let screen = client.resize_screen(width, height).await?;
        drop(work);
        if cx.ui.json {
            cx.ui.print_json(&screen)?;
        } else {
            let (width, height) = (screen.width, screen.height);
            cx.ui
                .print_message(format!("the resolution is {width}x{height}"));
        }
        return Ok(VerbOutcome::Done);
    }
    let DesktopLink {
        url,
        address_url: by_address,
        expires,
    } = client.desktop_link().await?;
    // A program that requests JSON opens the link itself.
    let is_here = client.engine_machine().is_none();
    let is_printed = matches!(plan, DesktopPlan::Print);
    let is_asked = !is_printed && !cx.ui.json && is_here && has_screen();
    let opened = is_asked && open::that_detached_with_timeout(&url, BROWSER_LAUNCH_TIMEOUT).is_ok();
    if cx.ui.json {
        cx.ui.print_json(&DesktopAnswer {
            url,
            expires_in_seconds: expires,
            opened,
        })?;
        return Ok(VerbOutcome::Done);
    }
    if opened {
        let other = cx.instance.osctl_command("desktop --url");
        cx.ui.print_message(format!(
            "opening the desktop in your browser; `{other}` prints a link"
        ));
        tell_address(cx, &url, &by_address, is_printed);
        return Ok(VerbOutcome::Done);
    }
    cx.ui.print_line(&url);
    if let Some(machine) = client.engine_machine() {
        let port = url.split(['/', ':']).nth(4).unwrap_or_default();
        cx.ui.print_message(format!(
            "the address is on `{machine}`; `ssh -nNT -L {port}:127.0.0.1:{port} {machine}` forwards it to this machine"
        ));
    }
    let no_browser = match is_printed {
        true => "",
        false => "no browser was opened; ",
    };
    cx.ui.print_message(format!(
        "{no_browser}open the link in a browser within {expires} seconds; the link works once"
    ));
    tell_address(cx, &url, &by_address, is_printed);
    Ok(VerbOutcome::Done)
}

/// Prints the address for browsers that do not resolve the name in the link, if such a browser is likely.
fn tell_address(cx: &CommandContext, url: &str, by_address: &str, is_printed: bool) {
    if by_address != url && (is_printed || cfg!(target_os = "macos")) {
        cx.ui.print_message(format!(
            "if the browser does not resolve `*.localhost` (Safari on older macOS), open {by_address} or use another browser"
        ));
    }
}

/// Whether a browser window would be visible: over a plain SSH connection it would not.
fn has_screen() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !cfg!(target_os = "linux") || ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(is_set)
}
