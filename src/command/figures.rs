//! Figures that code has shown: on terminals that can show them, else saved and told where.

use super::Context;
use crate::archive::{Folder, settle};
use crate::error::{Error, Result};
use crate::host::sanitize::sanitize_svg;
use crate::protocol::kernel::Shown;
use crate::ui::picture;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is a figure, the best form first: its type, the ending of its file, and how its bytes begin.
const FORMS: &[(&str, &str, &[&[u8]])] = &[
    ("image/png", "png", &[b"\x89PNG\r\n\x1a\n"]),
    ("image/jpeg", "jpg", &[b"\xff\xd8\xff"]),
    ("image/gif", "gif", &[b"GIF87a", b"GIF89a"]),
    (SVG, "svg", &[b"<"]),
    ("application/pdf", "pdf", &[b"%PDF-"]),
];

const SVG: &str = "image/svg+xml";
/// Of a drawing as text; a longer one is not saved.
const MAX_DRAWING_BYTES: usize = 16 << 20;
/// Files in the folder for figures that nobody gave a place.
const KEPT: usize = 100;

#[derive(Debug)]
pub(super) struct Figures<'a> {
    cx: &'a Context,
    out: Option<Out>,
    saved: Vec<PathBuf>,
}

/// The folder that the user named for figures, held open.
#[derive(Debug)]
struct Out {
    folder: Folder,
    path: PathBuf,
}

impl<'a> Figures<'a> {
    pub(super) fn new(cx: &'a Context, out: Option<PathBuf>) -> Result<Self> {
        let out = match out {
            Some(path) => Some(Out {
                folder: folder(cx, &path)?,
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

    /// Shows the figure in what was shown, or saves it; `false` when there is none.
    pub(super) fn show(&mut self, shown: &Shown) -> Result<bool> {
        let Some((bytes, ending)) = figure(shown) else {
            self.tell_too_long(shown);
            return Ok(false);
        };
        let is_seen = picture::show(&bytes, ending);
        if self.out.is_some() || !is_seen {
            self.write(&bytes, ending)?;
        }
        Ok(true)
    }

    /// Saves the figure where the person wants figures.
    pub(super) fn save(&mut self, shown: &Shown) -> Result<()> {
        if self.out.is_none() {
            return Ok(());
        }
        match figure(shown) {
            Some((bytes, ending)) => self.write(&bytes, ending),
            None => {
                self.tell_too_long(shown);
                Ok(())
            }
        }
    }

    fn tell_too_long(&self, shown: &Shown) {
        if is_too_long(shown) {
            let most = MAX_DRAWING_BYTES >> 20;
            self.cx.ui.say(format!(
                "the drawing is longer than {most} MiB and is not saved"
            ));
        }
    }

    fn write(&mut self, bytes: &[u8], ending: &str) -> Result<()> {
        let (path, written) = match &self.out {
            Some(Out { folder, path }) => {
                let name = |number: usize| format!("figure-{number}.{ending}");
                let written = write_new(folder, (1..).map(name), bytes);
                (path.clone(), written)
            }
            None => {
                let path = self.cx.instance.figures();
                let folder = folder(self.cx, &path)?;
                make_room(&folder);
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
                let names = (now..).map(|time| format!("{time}.{ending}"));
                (path, write_new(&folder, names, bytes))
            }
        };
        let name = written.map_err(|e| {
            let message = format!("no figure can be written in `{}`: {e}", path.display());
            Error::precondition(message, "give another folder: `--out DIR`")
        })?;
        self.saved.push(path.join(name));
        Ok(())
    }

    /// Says where figures were saved.
    pub(super) fn tell(&mut self) {
        for path in self.saved.drain(..) {
            self.cx.ui.say(format!("figure: {}", path.display()));
        }
    }
}

fn figure(shown: &Shown) -> Option<(Vec<u8>, &'static str)> {
    FORMS.iter().find_map(|(mime, ending, begins)| {
        let text = text(shown, mime)?;
        let bytes = if *ending == "svg" {
            // A browser that opens the file runs its scripts.
            let short = Some(text).filter(|text| text.len() <= MAX_DRAWING_BYTES)?;
            sanitize_svg(&short)?.into_bytes()
        } else {
            let packed: String = text.split_whitespace().collect();
            BASE64_STANDARD.decode(packed).ok()?
        };
        let is_form = begins.iter().any(|begin| bytes.starts_with(begin));
        is_form.then_some((bytes, *ending))
    })
}

fn text(shown: &Shown, mime: &str) -> Option<String> {
    match shown.data.get(mime)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => Some(lines.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn is_too_long(shown: &Shown) -> bool {
    text(shown, SVG).is_some_and(|text| text.len() > MAX_DRAWING_BYTES)
}

/// The folder at that path, which is created where it is missing.
fn folder(cx: &Context, path: &Path) -> Result<Folder> {
    let made = cx.path_resolver()?.make_folder(path);
    made.map_err(|unresolved| {
        unresolved.into_error(|e| {
            let message = format!("`{}` can't be made: {e}", path.display());
            Error::usage(message, "give a folder: `--out DIR`").into()
        })
    })
}

/// Writes a new file under the first of the names that is free, and returns that name. A link has its
/// name, wherever it leads.
fn write_new(
    folder: &Folder,
    names: impl IntoIterator<Item = String>,
    bytes: &[u8],
) -> io::Result<OsString> {
    for name in names.into_iter().map(OsString::from) {
        match folder.create(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => {
                let mut file = created?;
                file.write_all(bytes)?;
                settle(&file, 0o644, None)?;
                return Ok(name);
            }
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn make_room(folder: &Folder) {
    let files = folder.names().unwrap_or_default();
    let too_many = (files.len() + 1).saturating_sub(KEPT);
    for old in &files[..too_many] {
        // One that can't be removed only takes room.
        let _ = folder.remove(OsStr::new(old));
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DRAWING_BYTES, figure, is_too_long};
    use crate::protocol::kernel::Shown;
    use serde_json::json;
    use std::sync::Arc;

    fn shown(data: serde_json::Value) -> Shown {
        Shown {
            data: Arc::new(data.as_object().unwrap().clone()),
            ..Shown::default()
        }
    }

    #[test]
    fn the_best_form_is_taken_and_text_is_no_figure() {
        let both = shown(json!({"image/svg+xml": "<svg/>", "image/png": "iVBORw0KGgo=\n"}));
        assert_eq!(figure(&both), Some((b"\x89PNG\r\n\x1a\n".to_vec(), "png")));
        let drawn = shown(json!({"image/svg+xml": ["<svg>", "</svg>"]}));
        let (bytes, ending) = figure(&drawn).unwrap();
        assert!(bytes.starts_with(b"<svg xmlns=") && bytes.ends_with(b"</svg>"));
        assert_eq!(ending, "svg");
        assert_eq!(figure(&shown(json!({"text/html": "<b>"}))), None);
        assert_eq!(figure(&shown(json!({"image/png": "%"}))), None);
    }

    #[test]
    fn a_drawing_that_is_too_long_is_known_as_one() {
        let long = "<svg>".to_owned() + &" ".repeat(MAX_DRAWING_BYTES);
        let drawn = shown(json!({"image/svg+xml": [long, "</svg>"]}));
        assert!(figure(&drawn).is_none() && is_too_long(&drawn));
        assert!(!is_too_long(&shown(json!({"image/svg+xml": "<svg/>"}))));
    }

    #[test]
    fn bytes_that_are_no_picture_are_not_a_figure() {
        for mime in ["image/png", "image/jpeg", "image/gif", "application/pdf"] {
            assert_eq!(figure(&shown(json!({mime: "dG91Y2ggeA=="}))), None);
        }
        assert_eq!(figure(&shown(json!({"image/svg+xml": "touch x"}))), None);
    }
}
