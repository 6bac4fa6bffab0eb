//! Figures of executed code: shown on terminals that support pictures, otherwise saved to files.

use super::CommandContext;
use crate::archive::{Folder, set_mode_and_mtime};
use crate::error::{Error, Result};
use crate::host::sanitize::sanitize_svg;
use crate::protocol::kernel::DisplayData;
use crate::ui::picture;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Figure formats in order of preference: MIME type, file extension, and the first bytes of the file.
const FIGURE_FORMATS: &[(&str, &str, &[&[u8]])] = &[
    ("image/png", "png", &[b"\x89PNG\r\n\x1a\n"]),
    ("image/jpeg", "jpg", &[b"\xff\xd8\xff"]),
    ("image/gif", "gif", &[b"GIF87a", b"GIF89a"]),
    (SVG_MIME, "svg", &[b"<"]),
    ("application/pdf", "pdf", &[b"%PDF-"]),
];

const SVG_MIME: &str = "image/svg+xml";
/// Maximum length of a figure as text (SVG); a longer one is not saved.
const MAX_DRAWING_BYTES: usize = 16 << 20;
/// Maximum number of files in the default folder for figures.
const MAX_KEPT_FIGURES: usize = 100;

#[derive(Debug)]
pub(super) struct FigureOutput<'a> {
    cx: &'a CommandContext,
    out: Option<FigureFolder>,
    saved: Vec<PathBuf>,
}

/// The folder for figures that the user named, held open.
#[derive(Debug)]
struct FigureFolder {
    folder: Folder,
    path: PathBuf,
}

impl<'a> FigureOutput<'a> {
    pub(super) fn new(cx: &'a CommandContext, out: Option<PathBuf>) -> Result<Self> {
        let out = match out {
            Some(path) => Some(FigureFolder {
                folder: open_figure_folder(cx, &path)?,
                path,
            }),
            None => None,
        };
        Ok(Self {
            cx,
            out,
            saved: Vec::new(),
        })
    }

    /// Shows or saves the figure in the output; `false` if the output has no figure.
    pub(super) fn show_figure(&mut self, shown: &DisplayData) -> Result<bool> {
        let Some((bytes, ending)) = decode_figure(shown) else {
            self.tell_too_long(shown);
            return Ok(false);
        };
        let is_seen = picture::show_picture(&bytes, ending);
        if self.out.is_some() || !is_seen {
            self.write_figure(&bytes, ending)?;
        }
        Ok(true)
    }

    /// Saves the figure in the folder that the user chose, or in the default folder.
    pub(super) fn save_figure(&mut self, shown: &DisplayData) -> Result<()> {
        if self.out.is_none() {
            return Ok(());
        }
        match decode_figure(shown) {
            Some((bytes, ending)) => self.write_figure(&bytes, ending),
            None => {
                self.tell_too_long(shown);
                Ok(())
            }
        }
    }

    fn tell_too_long(&self, shown: &DisplayData) {
        if is_too_long(shown) {
            let most = MAX_DRAWING_BYTES >> 20;
            self.cx.ui.print_message(format!(
                "the drawing is larger than {most} MiB and was not saved"
            ));
        }
    }

    fn write_figure(&mut self, bytes: &[u8], ending: &str) -> Result<()> {
        let (path, written) = match &self.out {
            Some(FigureFolder { folder, path }) => {
                let name = |number: usize| format!("figure-{number}.{ending}");
                let written = write_new(folder, (1..).map(name), bytes);
                (path.clone(), written)
            }
            None => {
                let path = self.cx.instance.figures_folder();
                let folder = open_figure_folder(self.cx, &path)?;
                make_room(&folder);
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
                let names = (now..).map(|time| format!("{time}.{ending}"));
                (path, write_new(&folder, names, bytes))
            }
        };
        let name = written.map_err(|e| {
            let message = format!("cannot write a figure in `{}`: {e}", path.display());
            Error::precondition(message, "name another folder: `--out DIR`")
        })?;
        self.saved.push(path.join(name));
        Ok(())
    }

    /// Reports where figures were saved.
    pub(super) fn report_saved(&mut self) {
        for path in self.saved.drain(..) {
            self.cx
                .ui
                .print_message(format!("figure: {}", path.display()));
        }
    }
}

fn decode_figure(shown: &DisplayData) -> Option<(Vec<u8>, &'static str)> {
    FIGURE_FORMATS.iter().find_map(|(mime, ending, magic)| {
        let text = mime_text(shown, mime)?;
        let bytes = if *ending == "svg" {
            // A browser that opens the file would run its scripts.
            let short = Some(text).filter(|text| text.len() <= MAX_DRAWING_BYTES)?;
            sanitize_svg(&short)?.into_bytes()
        } else {
            let packed: String = text.split_whitespace().collect();
            BASE64_STANDARD.decode(packed).ok()?
        };
        let is_form = magic.iter().any(|begin| bytes.starts_with(begin));
        is_form.then_some((bytes, *ending))
    })
}

fn mime_text(shown: &DisplayData, mime: &str) -> Option<String> {
    match shown.data.get(mime)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => Some(lines.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn is_too_long(shown: &DisplayData) -> bool {
    mime_text(shown, SVG_MIME).is_some_and(|text| text.len() > MAX_DRAWING_BYTES)
}

/// Opens the folder at that path and creates it if it is missing.
fn open_figure_folder(cx: &CommandContext, path: &Path) -> Result<Folder> {
    let made = cx.path_resolver()?.make_folder(path);
    made.map_err(|unresolved| {
        unresolved.into_error(|e| {
            let message = format!("cannot create `{}`: {e}", path.display());
            Error::usage(message, "name a folder: `--out DIR`").into()
        })
    })
}

/// Writes a new file under the first free name, and returns that name. An existing link counts as a used name, whatever
/// its target.
fn write_new(
    folder: &Folder,
    names: impl IntoIterator<Item = String>,
    bytes: &[u8],
) -> io::Result<OsString> {
    for name in names.into_iter().map(OsString::from) {
        match folder.create_file(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => {
                let mut file = created?;
                file.write_all(bytes)?;
                set_mode_and_mtime(&file, 0o644, None)?;
                return Ok(name);
            }
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn make_room(folder: &Folder) {
    let files = folder.names().unwrap_or_default();
    let too_many = (files.len() + 1).saturating_sub(MAX_KEPT_FIGURES);
    for old in &files[..too_many] {
        // An old file that can't be removed only uses disk space.
        let _ = folder.remove(OsStr::new(old));
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DRAWING_BYTES, decode_figure, is_too_long};
    use crate::protocol::kernel::DisplayData;
    use serde_json::json;
    use std::sync::Arc;

    fn shown(data: serde_json::Value) -> DisplayData {
        DisplayData {
            data: Arc::new(data.as_object().unwrap().clone()),
            ..DisplayData::default()
        }
    }

    #[test]
    fn png_is_preferred_to_svg_and_html_is_no_figure() {
        let both = shown(json!({"image/svg+xml": "<svg/>", "image/png": "iVBORw0KGgo=\n"}));
        assert_eq!(
            decode_figure(&both),
            Some((b"\x89PNG\r\n\x1a\n".to_vec(), "png"))
        );
        let drawn = shown(json!({"image/svg+xml": ["<svg>", "</svg>"]}));
        let (bytes, ending) = decode_figure(&drawn).unwrap();
        assert!(bytes.starts_with(b"<svg xmlns=") && bytes.ends_with(b"</svg>"));
        assert_eq!(ending, "svg");
        assert_eq!(decode_figure(&shown(json!({"text/html": "<b>"}))), None);
        assert_eq!(decode_figure(&shown(json!({"image/png": "%"}))), None);
    }

    #[test]
    fn a_drawing_above_the_size_limit_is_detected() {
        let long = "<svg>".to_owned() + &" ".repeat(MAX_DRAWING_BYTES);
        let drawn = shown(json!({"image/svg+xml": [long, "</svg>"]}));
        assert!(decode_figure(&drawn).is_none() && is_too_long(&drawn));
        assert!(!is_too_long(&shown(json!({"image/svg+xml": "<svg/>"}))));
    }

    #[test]
    fn bytes_that_are_no_picture_are_not_a_figure() {
        for mime in ["image/png", "image/jpeg", "image/gif", "application/pdf"] {
            assert_eq!(decode_figure(&shown(json!({mime: "dG91Y2ggeA=="}))), None);
        }
        assert_eq!(
            decode_figure(&shown(json!({"image/svg+xml": "touch x"}))),
            None
        );
    }
}
