//! Figures that code has shown: on terminals that can show them, else saved and told where.

use super::Context;
use crate::error::{Error, Result};
use crate::protocol::kernel::Shown;
use crate::ui::picture;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is a figure, the best form first, and the ending of its file.
const FORMS: &[(&str, &str)] = &[
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/gif", "gif"),
    ("image/svg+xml", "svg"),
    ("application/pdf", "pdf"),
];

/// Files in the folder for figures that nobody gave a place.
const KEPT: usize = 100;

#[derive(Debug)]
pub(super) struct Figures<'a> {
    cx: &'a Context,
    out: Option<PathBuf>,
    saved: Vec<PathBuf>,
}

impl<'a> Figures<'a> {
    pub(super) fn new(cx: &'a Context, out: Option<PathBuf>) -> Result<Self> {
        if let Some(folder) = &out {
            fs::create_dir_all(folder).map_err(|e| {
                Error::usage(
                    format!("`{}` can't be made: {e}", folder.display()),
                    "give a folder: `--out DIR`",
                )
            })?;
        }
        Ok(Self {
            cx,
            out,
            saved: Vec::new(),
        })
    }

    /// Shows the figure in what was shown, or saves it; `false` when there is none.
    pub(super) fn show(&mut self, shown: &Shown) -> Result<bool> {
        let Some((bytes, ending)) = figure(shown) else {
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
        match figure(shown) {
            Some((bytes, ending)) if self.out.is_some() => self.write(&bytes, ending),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8], ending: &str) -> Result<()> {
        let path = match &self.out {
            Some(folder) => free_name(folder, ending),
            None => {
                let folder = self.cx.instance.figures();
                fs::create_dir_all(&folder)?;
                make_room(&folder);
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                folder.join(format!("{}.{ending}", now.as_micros()))
            }
        };
        fs::write(&path, bytes).map_err(|e| {
            let message = format!("`{}` can't be written: {e}", path.display());
            Error::precondition(message, "give another folder: `--out DIR`")
        })?;
        self.saved.push(path);
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
    FORMS.iter().find_map(|(mime, ending)| {
        let text = match shown.data.get(*mime)? {
            Value::String(text) => text.clone(),
            Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        let bytes = if *ending == "svg" {
            text.into_bytes()
        } else {
            let packed: String = text.split_whitespace().collect();
            BASE64_STANDARD.decode(packed).ok()?
        };
        Some((bytes, *ending))
    })
}

/// `figure-1.png`, or the first number that no file has.
fn free_name(folder: &Path, ending: &str) -> PathBuf {
    let name = |number: usize| folder.join(format!("figure-{number}.{ending}"));
    (1..)
        .map(name)
        .find(|path| !path.exists())
        .unwrap_or_default()
}

fn make_room(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    files.sort();
    let too_many = (files.len() + 1).saturating_sub(KEPT);
    for old in &files[..too_many] {
        // One that can't be removed only takes room.
        let _ = fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::figure;
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
        let both = shown(json!({"image/svg+xml": "<svg/>", "image/png": "aGk=\n"}));
        assert_eq!(figure(&both), Some((b"hi".to_vec(), "png")));
        let drawn = shown(json!({"image/svg+xml": ["<svg>", "</svg>"]}));
        assert_eq!(figure(&drawn), Some((b"<svg></svg>".to_vec(), "svg")));
        assert_eq!(figure(&shown(json!({"text/html": "<b>"}))), None);
        assert_eq!(figure(&shown(json!({"image/png": "%"}))), None);
    }
}
