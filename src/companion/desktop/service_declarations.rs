//! Declarations of the desktop's services, built from its settings.

use super::{DEFAULT_MAX_SCREEN_SIZE, DesktopMode, DesktopSettings};
use crate::companion::display;
use crate::companion::service::{self, ServiceDeclarations};
use std::path::Path;

pub(super) fn declare_services(settings: &DesktopSettings) -> Result<ServiceDeclarations, String> {
    if settings.is_embedded {
        return Err("the embedded engine has no screen; only containers have a desktop".into());
    }
    if settings.mode == DesktopMode::Off {
        return Err("`desktop.run` is `off` in osctl.yaml".into());
    }
    for folder in [&settings.run_folder, &settings.profile_folder] {
        create_desktop_folder(folder)
            .map_err(|error| format!("cannot create `{}`: {error}", folder.display()))?;
    }
    let (width, height) = settings.resolution;
    let text = |path: &Path| path.display().to_string();
    let variables = [
        ("WIDTH", width.max(DEFAULT_MAX_SCREEN_SIZE.0).to_string()),
        ("HEIGHT", height.max(DEFAULT_MAX_SCREEN_SIZE.1).to_string()),
        ("DEPTH", settings.depth.to_string()),
        ("DISPLAY", display::DISPLAY_NAME.to_owned()),
        ("RUN", text(&settings.run_folder)),
        ("BODY", text(&settings.body_folder)),
        ("PROFILE", text(&settings.profile_folder)),
    ];
    service::load_declarations(&settings.body_folder, &variables)
}

fn create_desktop_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)
}
