//! `osctl screenshot`: saves a picture of the desktop.

use super::CommandContext;
use super::answers::ScreenshotAnswer;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::display::ScreenshotFile;
use crate::protocol::display::{ScreenshotQuery, format_taken_time};
use clap::Args;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Endings of other formats, which the content of the file would contradict.
const FOREIGN_PICTURE_ENDINGS: [&str; 9] = [
    "bmp", "gif", "jpeg", "jpg", "pdf", "svg", "tif", "tiff", "webp",
];

#[derive(Debug, Args)]
pub(crate) struct ScreenshotArgs {
    /// PNG file to write, such as screen.png
    file: PathBuf,
    /// Save only this region of the screen, in pixels
    #[arg(long, value_name = "X,Y,WIDTH,HEIGHT")]
    region: Option<String>,
    /// Scale the picture, for example by 0.5
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
}

#[derive(Debug)]
struct ScreenshotPlan {
    file: PathBuf,
    query: ScreenshotQuery,
}

impl From<ScreenshotArgs> for ScreenshotPlan {
    fn from(args: ScreenshotArgs) -> Self {
        let ScreenshotArgs {
            file,
            region,
            scale,
        } = args;
        Self {
            file,
            query: ScreenshotQuery { region, scale },
        }
    }
}

pub(crate) async fn run(args: ScreenshotArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let ScreenshotPlan { file, query } = args.into();
    check_ending(&file)?;
    let work = cx.ui.start_request("taking a screenshot");
    let shot = cx.companion_client()?.take_screenshot(&query).await?;
    drop(work);
    save_picture(&file, &shot.file, cx)?;
    if cx.ui.json {
        cx.ui.print_json(&ScreenshotAnswer::new(&file, shot))?;
    } else {
        cx.ui.print_message(describe_shot(&file, &shot));
    }
    Ok(VerbOutcome::Done)
}

/// # Errors
/// When the name belongs to another format.
fn check_ending(file: &Path) -> Result<()> {
    let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default();
    if !FOREIGN_PICTURE_ENDINGS.contains(&ending.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    let message = format!("a screenshot is a PNG file, not `.{ending}`");
    let hint = format!("name the file `{}`", file.with_extension("png").display());
    Err(Error::usage(message, hint).into())
}

/// The size of the picture, and the time when it was taken, by the container's clock.
fn describe_shot(file: &Path, shot: &ScreenshotFile) -> String {
    let (name, picture, taken) = (
        file.display(),
        &shot.picture_size,
        format_taken_time(shot.taken_at_ms),
    );
    format!("`{name}` has {picture} pixels, taken at {taken}")
}

/// Replaces an earlier picture by a rename, so that it stays complete until then.
fn save_picture(path: &Path, content: &[u8], cx: &CommandContext) -> Result<()> {
    let failed = |why: io::Error| -> anyhow::Error {
        if why.kind() == ErrorKind::NotFound {
            let message = format!("the folder of `{}` does not exist", path.display());
            return Error::usage(message, "name a file in a folder that exists").into();
        }
        let message = format!("cannot write `{}`: {why}", path.display());
        Error::precondition(message, "name a file in a writable folder").into()
    };
    let place = cx.path_resolver()?.resolve_name(path);
    let place = place.map_err(|unresolved| unresolved.into_error(failed))?;
    let written = place.folder.replace_file(&place.name, 0o644, content);
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::{check_ending, describe_shot};
    use crate::error::Error;
    use crate::host::display::ScreenshotFile;
    use std::path::Path;

    #[test]
    fn an_ending_of_another_format_is_refused() {
        for name in ["a.png", "a.PNG", "a", "tmp.Xa82", "/dev/stdout", "a.jpg/b"] {
            check_ending(Path::new(name)).unwrap();
        }
        let error = check_ending(Path::new("shots/a.JPG")).unwrap_err();
        let error: &Error = error.downcast_ref().unwrap();
        assert_eq!(error.to_string(), "a screenshot is a PNG file, not `.JPG`");
        assert_eq!(error.hint().unwrap(), "name the file `shots/a.png`");
    }

    #[test]
    fn a_screenshot_is_described_with_its_size_and_time() {
        let shot = ScreenshotFile {
            file: Vec::new(),
            picture_size: "90x70".into(),
            screen_size: "1280x800".into(),
            taken_at_ms: 1_700_000_000_042,
        };
        let text = describe_shot(Path::new("a.png"), &shot);
        assert_eq!(
            text,
            "`a.png` has 90x70 pixels, taken at 2023-11-14T22:13:20.042Z"
        );
    }
}
