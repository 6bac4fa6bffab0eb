//! `osctl mcp connect` and `disconnect`: add and remove osctl's entry in the configuration of an MCP client.

use super::filter::McpFilterArgs;
use crate::command::answers::ClientAnswer;
use crate::command::{CommandContext, launch_command};
use crate::error::{EXIT_PRECONDITION, Error, Result, VerbOutcome};
use crate::host::connect::{
    self, CONNECT_CLIENTS, ClientConfigPaths, ClientFileChange, ConnectClient, LaunchCommand,
};
use crate::host::instance::DEFAULT_INSTANCE;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The client that reads the file of a project.
const PROJECT_CLIENT: &str = "claude-code";

#[derive(Debug, Args)]
pub(crate) struct McpConnectArgs {
    /// MCP client to connect [default: choose of the installed ones]
    #[arg(value_parser = client_parser())]
    client: Option<&'static ConnectClient>,
    #[command(flatten)]
    narrow: McpFilterArgs,
    #[command(flatten)]
    how: ConnectOptions,
    /// Skip the connection test
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct McpDisconnectArgs {
    /// MCP client to disconnect
    #[arg(value_parser = client_parser())]
    client: &'static ConnectClient,
    #[command(flatten)]
    how: ConnectOptions,
}

#[derive(Debug, Args)]
struct ConnectOptions {
    /// File to change: of the user, or `.mcp.json` in this folder for Claude Code
    #[arg(long, default_value = "user", value_name = "SCOPE", value_parser = scope_parser())]
    scope: ConnectScope,
    /// Answer yes to all questions
    #[arg(short, long)]
    yes: bool,
    /// Print the change only
    #[arg(long, alias = "print", conflicts_with = "yes")]
    dry_run: bool,
}

/// The file that `connect` changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectScope {
    User,
    Project,
}

fn scope_parser() -> impl TypedValueParser<Value = ConnectScope> {
    PossibleValuesParser::new(["user", "project"]).map(|name| match name.as_str() {
        "project" => ConnectScope::Project,
        _ => ConnectScope::User,
    })
}

fn client_parser() -> impl TypedValueParser<Value = &'static ConnectClient> {
    let names = CONNECT_CLIENTS.iter().map(|client| client.name);
    PossibleValuesParser::new(names).try_map(|name| ConnectClient::find(&name).ok_or("no client"))
}

pub(super) async fn connect_client(
    args: McpConnectArgs,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let McpConnectArgs {
        client,
        narrow,
        how,
        no_verify,
    } = args;
    let clients = match (client, how.scope) {
        (Some(client), _) => vec![client],
        (None, ConnectScope::User) => choose_clients(how.yes, cx)?,
        (None, ConnectScope::Project) => ConnectClient::find(PROJECT_CLIENT).into_iter().collect(),
    };
    let (name, tested) = (server_name(cx), bridge_call(narrow, cx)?);
    let call = match how.scope {
        ConnectScope::User => tested.clone(),
        // Others who work on the project have the program elsewhere.
        ConnectScope::Project => tested.clone().for_other_users(),
    };
    let (mut tools, mut outcome) = (None, VerbOutcome::Done);
    for client in clients {
        let change = connect::plan_connect(client, &name, &call, &config_paths(client, &how, cx)?)?;
        show_change(&change, client, cx);
        if tools.is_none() && !how.dry_run && !no_verify {
            tools = Some(test_connection(&tested, cx).await?);
        }
        if !finish_connect(&change, client, &how, tools, cx)? {
            outcome = VerbOutcome::Code(EXIT_PRECONDITION);
        }
    }
    Ok(outcome)
}

/// # Errors
/// When the client reads no file of a project.
fn config_paths(
    client: &ConnectClient,
    how: &ConnectOptions,
    cx: &CommandContext,
) -> Result<ClientConfigPaths> {
    let home = &cx.folders.home;
    match how.scope {
        ConnectScope::User => Ok(ClientConfigPaths::for_home(home)),
        ConnectScope::Project if client.name == PROJECT_CLIENT => {
            let project = std::env::current_dir()?;
            Ok(ClientConfigPaths::for_project(home, &project))
        }
        ConnectScope::Project => {
            let message = format!("{} does not read `.mcp.json`", client.title);
            let hint = "omit `--scope project`, or connect `claude-code`";
            Err(Error::usage(message, hint).into())
        }
    }
}

/// The only installed client with `--yes`, else the answer to the question which of the installed clients to connect.
fn choose_clients(yes: bool, cx: &CommandContext) -> Result<Vec<&'static ConnectClient>> {
    let places = ClientConfigPaths::for_home(&cx.folders.home);
    let installed: Vec<&'static ConnectClient> = CONNECT_CLIENTS
        .iter()
        .filter(|client| client.is_installed(&places))
        .collect();
    let names: Vec<String> = installed
        .iter()
        .map(|client| format!("`{}`", client.name))
        .collect();
    if installed.is_empty() {
        let known: Vec<&str> = CONNECT_CLIENTS.iter().map(|client| client.name).collect();
        let hint = format!(
            "`osctl mcp connect CLIENT` connects a client anyway: {}",
            known.join(", ")
        );
        return Err(Error::usage("no known MCP client is installed", hint).into());
    }
    if yes && installed.len() == 1 {
        return Ok(installed);
    }
    if cx.ui.json || !cx.ui.can_prompt() {
        let message = format!("no MCP client is named; installed: {}", names.join(", "));
        let hint = format!("`osctl mcp connect {}`", installed[0].name);
        return Err(Error::usage(message, hint).into());
    }
    let titles: Vec<&str> = installed.iter().map(|client| client.title).collect();
    let chosen = cx.ui.choose_several(
        "Which clients? (space bar: select or deselect, Enter: connect)",
        &titles,
    )?;
    match chosen.is_empty() {
        true => {
            let hint = "run `osctl mcp connect` again; Enter accepts the selected clients, the space bar changes the selection";
            Err(Error::usage("no client was chosen", hint).into())
        }
        false => Ok(chosen.into_iter().map(|at| installed[at]).collect()),
    }
}

/// Starts the command as a client does, and returns the number of its tools.
async fn test_connection(call: &LaunchCommand, cx: &CommandContext) -> Result<usize> {
    let work = cx.ui.start_request("testing the connection");
    let found = connect::probe_command(call).await?;
    drop(work);
    for server in &found.missing {
        super::warn_missing(server, cx);
    }
    if found.tools.is_empty() {
        let hint = "`osctl mcp ls` lists the servers, and `osctl mcp tools` their tools; check `--servers` and `--tools`";
        return Err(Error::precondition("the client would get no tools", hint).into());
    }
    cx.ui
        .print_message(format!("the connection works: {} tools", found.tools.len()));
    Ok(found.tools.len())
}

/// Applies the change and reports it; `false` if the user declined.
fn finish_connect(
    change: &ClientFileChange,
    client: &ConnectClient,
    how: &ConnectOptions,
    tools: Option<usize>,
    cx: &CommandContext,
) -> Result<bool> {
    let name = server_name(cx);
    let title = client.title;
    let is_done = change.is_unchanged() || apply_change(change, client, how, cx)?;
    if cx.ui.json {
        let next = (is_done && !change.is_unchanged()).then_some(client.reload_hint);
        let answer = change_answer(change, client, name, is_done);
        cx.ui.print_json(&ClientAnswer {
            tool_count: tools,
            next: next.map(str::to_owned),
            ..answer
        })?;
    } else if change.is_unchanged() {
        cx.ui.print_message(format!(
            "{title} is already connected, as `{name}` in `{}`",
            change.file.display()
        ));
    } else if is_done {
        if let Some(backup) = change.backup_path() {
            cx.ui.print_message(format!(
                "backup of the previous file: `{}`",
                backup.display()
            ));
        }
        cx.ui.print_message(format!(
            "added the server `{name}` to {title}; next: {}",
            client.reload_hint
        ));
    }
    Ok(is_done || how.dry_run)
}

pub(super) fn disconnect_client(
    args: McpDisconnectArgs,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let McpDisconnectArgs { client, how } = args;
    let name = server_name(cx);
    let change = connect::plan_disconnect(client, &name, &config_paths(client, &how, cx)?)?;
    let title = client.title;
    if change.is_unchanged() {
        let message = format!(
            "{title} is not connected: `{}` has no server `{name}`",
            change.file.display()
        );
        let hint = format!(
            "`osctl --instance NAME mcp disconnect {}` removes the server of another instance",
            client.name
        );
        return Err(Error::usage(message, hint).into());
    }
    show_change(&change, client, cx);
    let is_done = apply_change(&change, client, &how, cx)?;
    if cx.ui.json {
        cx.ui
            .print_json(&change_answer(&change, client, name.clone(), is_done))?;
    } else if is_done {
        cx.ui.print_message(format!(
            "removed the server `{name}` from {title}; next: {}",
            client.reload_hint
        ));
    }
    Ok(match is_done || how.dry_run {
        true => VerbOutcome::Done,
        false => VerbOutcome::Code(EXIT_PRECONDITION),
    })
}

/// The names of the clients whose own configuration starts the bridge to this instance.
pub(in crate::command) fn connected_clients(cx: &CommandContext) -> Vec<&'static str> {
    let places = ClientConfigPaths::for_home(&cx.folders.home);
    let name = server_name(cx);
    let clients = CONNECT_CLIENTS.iter();
    let connected = clients.filter(|client| connect::is_connected(client, &name, &places));
    connected.map(|client| client.name).collect()
}

fn show_change(change: &ClientFileChange, client: &ConnectClient, cx: &CommandContext) {
    if change.is_unchanged() || cx.ui.json {
        return;
    }
    cx.ui
        .print_message(format!("{}: `{}`", client.title, change.file.display()));
    for line in change.diff_lines() {
        cx.ui.print_difference(line.is_new, &line.text);
    }
    if let Some(copy) = change.dropped_backup() {
        cx.ui
            .print_message(format!("removing the backup `{}`", copy.display()));
    }
}

/// Applies the change; `false` for a dry run or if the user declined.
fn apply_change(
    change: &ClientFileChange,
    client: &ConnectClient,
    how: &ConnectOptions,
    cx: &CommandContext,
) -> Result<bool> {
    if how.dry_run {
        return Ok(false);
    }
    let consent_question = format!("Change the configuration of {}?", client.title);
    let is_wanted = how.yes || cx.ui.confirm(&consent_question, "--yes")?;
    match is_wanted {
        true => change.apply()?,
        false => cx.ui.print_message(format!(
            "the configuration of {} was not changed",
            client.title
        )),
    }
    Ok(is_wanted)
}

fn change_answer(
    change: &ClientFileChange,
    client: &ConnectClient,
    name: String,
    is_done: bool,
) -> ClientAnswer {
    let lines = change.diff_lines().into_iter().map(|line| {
        let sign = if line.is_new { "+" } else { "-" };
        format!("{sign} {}", line.text)
    });
    ClientAnswer {
        client: client.name.into(),
        server: name,
        file: change.file.clone(),
        changed: is_done && !change.is_unchanged(),
        difference: lines.collect(),
        backup: change.backup_path().filter(|_| is_done).map(Into::into),
        tool_count: None,
        next: None,
    }
}

/// The name of the server in the client's configuration.
fn server_name(cx: &CommandContext) -> String {
    match cx.instance.name.as_str() {
        DEFAULT_INSTANCE => "osctl".into(),
        other => format!("osctl-{other}"),
    }
}

/// The command that the client starts.
fn bridge_call(narrow: McpFilterArgs, cx: &CommandContext) -> Result<LaunchCommand> {
    // A client starts the command in any folder.
    let mut words = vec!["--instance".into(), cx.instance.name.clone()];
    words.extend(launch_command::config_args(cx)?);
    Ok(LaunchCommand::for_bridge(
        launch_command::program_path(cx)?,
        words,
        narrow.into_target(None).to_arguments(),
        launch_command::state_environment(),
    ))
}
