//! `osctl man`: writes a man page for each verb that `osctl --help` lists, for packages.

use super::CommandContext;
use crate::archive::Folder;
use crate::cli;
use crate::error::{Error, Result, VerbOutcome};
use clap::{Args, Command};
use clap_mangen::Man;
use std::io;
use std::path::PathBuf;

const MAN_VERSION: &str = concat!("osctl ", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder of the pages; it is created if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: ManArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let ManArgs { folder } = args;
    let failed = |why: io::Error| {
        let message = format!("cannot write pages to `{}`: {why}", folder.display());
        Error::precondition(message, "name a writable folder: `osctl man DIR`").into()
    };
    let opened = cx.path_resolver()?.make_folder(&folder);
    let opened = opened.map_err(|unresolved| unresolved.into_error(failed))?;
    let mut command = cli::clap_command().disable_help_subcommand(true);
    command.build();
    let pages = write_pages(command, &opened).map_err(failed)?;
    cx.ui
        .print_message(format!("{pages} pages in `{}`", folder.display()));
    Ok(VerbOutcome::Done)
}

/// Writes the pages of this command and its subcommands, and returns their number.
fn write_pages(command: Command, folder: &Folder) -> io::Result<usize> {
    let mut pages = 1;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        pages += write_pages(verb.clone(), folder)?;
    }
    // An empty date would be left out of the title, and the version would take its place.
    let man = Man::new(command).date(" ").source(MAN_VERSION);
    let mut page = Vec::new();
    man.render(&mut page)?;
    folder.replace_file(man.get_filename().as_ref(), 0o644, &page)?;
    Ok(pages)
}
