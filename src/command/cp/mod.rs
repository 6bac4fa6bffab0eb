//! `osctl cp`: copies files and folders into and out of the container.

mod download;
mod plan;
mod upload;

use super::CommandContext;
use super::answers::CopyAnswer;
use super::candidates::path_candidates;
use super::format_duration;
use crate::error::{Result, VerbOutcome};
use crate::host::files::TransferredBytes;
use crate::protocol::words::count_noun;
use crate::ui::format_bytes;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use plan::{CopyDirection, CpPlan};
use std::ffi::OsString;
use std::time::Instant;

/// Copies as `docker cp` does: into the destination if it is an existing folder, otherwise under the destination's
/// name. `FOLDER/.` copies the content of the folder. Permissions, times, links and holes are kept, owners are not.
#[derive(Debug, Args)]
#[command(
    override_usage = "osctl cp [OPTIONS] <SRC> os:<DST>\n       osctl cp [OPTIONS] os:<SRC> <DST>\n       osctl cp [OPTIONS] - os:<DST>\n       osctl cp [OPTIONS] os:<SRC> -"
)]
pub(crate) struct CpArgs {
    /// File or folder to copy: `os:/PATH` in the container, PATH on this machine; `-` reads stdin
    #[arg(value_name = "SRC", add = ArgValueCompleter::new(path_candidates))]
    source: OsString,
    /// Destination: `os:/PATH` in the container, PATH on this machine; `-` writes to stdout, a folder as tar
    #[arg(value_name = "DST", add = ArgValueCompleter::new(path_candidates))]
    destination: OsString,
    /// Keep setuid and setgid bits of files from the container
    #[arg(long)]
    setuid: bool,
}

/// Counts of copied entries and bytes.
#[derive(Debug, Default)]
pub(super) struct CopyReport {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) files: u64,
    pub(super) folders: u64,
    /// Symbolic and hard links.
    pub(super) links: u64,
    /// Bytes of file data without holes.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl CopyReport {
    /// The report in one line, without kinds of entries that were not copied.
    fn summary(&self) -> String {
        let other = [(self.folders, "folder"), (self.links, "link")];
        let other = other.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = [(self.files, "file")]
            .into_iter()
            .chain(other)
            .map(|(count, noun)| count_noun(usize::try_from(count).unwrap_or(usize::MAX), noun))
            .collect();
        format!(
            "copied {}, {} in {}",
            counts.join(", "),
            format_bytes(self.bytes),
            format_duration(self.seconds)
        )
    }
}

impl From<CopyReport> for CopyAnswer {
    fn from(report: CopyReport) -> Self {
        let CopyReport {
            source,
            destination,
            files,
            folders,
            links,
            bytes,
            seconds,
        } = report;
        Self {
            source,
            destination,
            files,
            folders,
            links,
            copied_bytes: bytes,
            duration_seconds: seconds,
        }
    }
}

pub(crate) async fn run(args: CpArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let [source, destination] =
        [&args.source, &args.destination].map(|side| side.to_string_lossy().into_owned());
    let plan = CpPlan::try_from(args)?;
    let resolver = cx.path_resolver()?;
    let client = cx.companion_client()?;
    let moved = TransferredBytes::default();
    let started_at = Instant::now();
    let is_out = matches!(plan.way, CopyDirection::ToStdout { .. });
    let meter = cx
        .ui
        .start_meter(&format!("{source} → {destination}"), &moved);
    let copied = meter
        .show_during(async {
            match plan.way {
                CopyDirection::Up { from, to } => {
                    let upload = upload::CpUpload {
                        resolver: &resolver,
                        meter: &meter,
                        moved: &moved,
                    };
                    upload.run(&client, &from, &to).await
                }
                CopyDirection::FromStdin { to } => upload::upload_stdin(&client, &to, &moved).await,
                CopyDirection::Down { from, to } => {
                    let transfer = download::CpDownload {
                        keep_setid: plan.keep_setid,
                        resolver: &resolver,
                        meter: &meter,
                        moved: &moved,
                    };
                    transfer.run(&client, &from, &to).await
                }
                CopyDirection::ToStdout { from } => {
                    download::download_to_stdout(&client, &from, cx.ui.stdout_writer(), &moved)
                        .await
                }
            }
        })
        .await?;
    drop(meter);
    let copied = CopyReport {
        source,
        destination,
        seconds: started_at.elapsed().as_secs_f64(),
        ..copied
    };
    match cx.ui.json {
        // In this case stdout carries the data.
        true if is_out => {}
        true => cx.ui.print_json(&CopyAnswer::from(copied))?,
        false => cx.ui.print_message(copied.summary()),
    }
    Ok(VerbOutcome::Done)
}

#[cfg(test)]
mod tests {
    use super::CopyReport;

    #[test]
    fn the_summary_names_only_kinds_that_were_copied() {
        let mut report = CopyReport {
            files: 3,
            bytes: 2048,
            seconds: 0.4,
            ..CopyReport::default()
        };
        assert_eq!(report.summary(), "copied 3 files, 2.00 KiB in 400 ms");
        (report.files, report.folders, report.links) = (0, 1, 2);
        assert_eq!(
            report.summary(),
            "copied 0 files, 1 folder, 2 links, 2.00 KiB in 400 ms"
        );
    }
}
